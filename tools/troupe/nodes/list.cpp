#include "nodes/list.hpp"

#include <troupe/actors/decisions/node_labels.hpp>
#include <troupe/config.hpp>
#include <troupe/runtime/members.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

namespace troupe::tool {

namespace {

std::string runs_of(const cluster_member& member) {
  std::string result;
  for (const auto& each : member.runs)
    result += fmt::format("{}{}: {}", result.empty() ? "" : ", ", each.name, each.workers);
  return result.empty() ? "-" : result;
}

std::string labels_of(const cluster_member& member) {
  return member.labels.empty() ? "-" : actors::describe(member.labels);
}

std::string gpus_of(const cluster_member& member) {
  if (member.offered.gpus == 0)
    return "-";
  return fmt::format("{:.0f} of {:.0f} free", member.free.gpus, member.offered.gpus);
}

} // namespace

std::string table_of(const std::vector<listed_member>& members) {
  using row = std::array<std::string, 9>;
  std::vector<row> rows{{"ADDRESS", "HOST", "STATE", "CPUS", "GPUS", "WORKERS", "LABELS", "VERSION", "CERTIFICATE"}};
  for (const auto& each : members) {
    const auto& what = each.what;
    auto state = std::string{runtime::state_of(each)};
    if (each.is_silent)
      state += fmt::format(" for {} s", each.silent_for.count() / 1000);
    rows.push_back({what.address, what.host, std::move(state), fmt::to_string(what.offered.cpus), gpus_of(what),
                    runs_of(what), labels_of(what), what.version,
                    what.certificate_expires ? "until " + runtime::day_of(*what.certificate_expires) : "-"});
  }
  std::array<std::size_t, 9> widths{};
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
  for (const auto& each : members)
    out.push_back(runtime::to_json(each));
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
