#include "nodes/list.hpp"

#include <troupe/config.hpp>
#include <troupe/messages/node.hpp>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

namespace troupe::tool {

namespace {

std::string day_of(std::int64_t seconds) {
  return fmt::format("{:%Y-%m-%d}", fmt::gmtime(static_cast<std::time_t>(seconds)));
}

std::string runs_of(const cluster_member& member) {
  std::string result;
  for (const auto& each : member.runs)
    result += fmt::format("{}{}: {}", result.empty() ? "" : ", ", each.name, each.workers);
  return result.empty() ? "-" : result;
}

std::string gpus_of(const cluster_member& member) {
  if (member.offered.gpus == 0)
    return "-";
  return fmt::format("{:.0f} of {:.0f} free", member.free.gpus, member.offered.gpus);
}

} // namespace

std::string_view state_of(const listed_member& member) {
  if (member.is_silent)
    return "silent";
  if (member.what.protocol != protocol_version)
    return "other version";
  switch (member.what.phase) {
  case member_phase::available:
    return "available";
  case member_phase::drained:
    return workers_of(member.what) > 0 ? "draining" : "drained";
  case member_phase::leaving:
    return "leaving";
  }
  return "available";
}

std::string table_of(const std::vector<listed_member>& members) {
  using row = std::array<std::string, 8>;
  std::vector<row> rows{{"ADDRESS", "HOST", "STATE", "CPUS", "GPUS", "WORKERS", "VERSION", "CERTIFICATE"}};
  for (const auto& each : members) {
    const auto& what = each.what;
    auto state = std::string{state_of(each)};
    if (each.is_silent)
      state += fmt::format(" for {} s", each.silent_for.count() / 1000);
    rows.push_back({what.address, what.host, std::move(state), fmt::to_string(what.offered.cpus), gpus_of(what),
                    runs_of(what), what.version,
                    what.certificate_expires ? "until " + day_of(*what.certificate_expires) : "-"});
  }
  std::array<std::size_t, 8> widths{};
  for (const auto& each : rows)
    for (std::size_t i = 0; i < each.size(); ++i)
      widths[i] = std::max(widths[i], each[i].size());
  std::string result;
  for (const auto& each : rows) {
    for (std::size_t i = 0; i + 1 < each.size(); ++i)
      result += fmt::format("{:<{}}  ", each[i], widths[i]);
    result += each.back() + "\n";
  }
  return result;
}

std::string json_of(const std::vector<listed_member>& members) {
  auto out = nlohmann::ordered_json::array();
  for (const auto& each : members) {
    const auto& what = each.what;
    auto runs = nlohmann::ordered_json::array();
    for (const auto& run : what.runs)
      runs.push_back({{"run", run.run}, {"name", run.name}, {"workers", run.workers}});
    out.push_back(
        {{"address", what.address},
         {"host", what.host},
         {"pid", what.pid},
         {"state", state_of(each)},
         {"silent_seconds", static_cast<double>(each.silent_for.count()) / 1000},
         {"cpus", what.offered.cpus},
         {"gpus", what.offered.gpus},
         {"free_gpus", what.free.gpus},
         {"workers", workers_of(what)},
         {"runs", std::move(runs)},
         {"version", what.version},
         {"protocol", what.protocol},
         {"certificate_expires", what.certificate_expires ? nlohmann::ordered_json(day_of(*what.certificate_expires))
                                                          : nlohmann::ordered_json{}}});
  }
  return out.dump(2) + "\n";
}

expected<std::string> find_member(const std::vector<listed_member>& members, const std::string& name) {
  std::vector<std::string> found;
  for (const auto& each : members) {
    if (each.what.address == name)
      return name;
    const auto where = parse_endpoint(each.what.address);
    if (each.what.host == name || (where && where->host == name))
      found.push_back(each.what.address);
  }
  if (found.empty())
    return fail(errc::not_found,
                fmt::format("the cluster has no node {}: `troupe nodes` lists those that it has", name));
  if (found.size() > 1)
    return fail(errc::invalid_argument, fmt::format("{} nodes are on {}: name one by its address: {}", found.size(),
                                                    name, fmt::join(found, ", ")));
  return found.front();
}

} // namespace troupe::tool
