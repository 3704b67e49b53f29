#include "nodes/list.hpp"

#include "checkpoint/text.hpp"

#include <troupe/actors/decisions/node_labels.hpp>
#include <troupe/endpoint.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace troupe::tool {

namespace {

using row = std::array<std::string, 9>;

std::string runs_of(const node_report& node) {
  std::string result;
  for (const auto& each : node.runs)
    result += fmt::format("{}{}: {}", result.empty() ? "" : ", ", printable(each.name), each.workers);
  return result.empty() ? "-" : result;
}

std::string gpus_of(const node_report& node) {
  if (node.offered.gpus == 0)
    return "-";
  return fmt::format("{:.0f} of {:.0f} free", node.free.gpus, node.offered.gpus);
}

row row_of(const runtime::asked_node& node) {
  const auto state = std::string{runtime::state_of(node)};
  if (!node.report)
    return {node.address, "-", state, "-", "-", "-", "-", "-", "-"};
  const auto& what = *node.report;
  return {node.address,
          printable(what.host),
          state,
          fmt::to_string(what.offered.cpus),
          gpus_of(what),
          runs_of(what),
          what.labels.empty() ? "-" : printable(actors::describe(what.labels)),
          printable(what.version),
          what.certificate_expires ? "until " + runtime::day_of(*what.certificate_expires) : "-"};
}

} // namespace

std::string table_of(const std::vector<runtime::asked_node>& nodes) {
  std::vector<row> rows{{"ADDRESS", "HOST", "STATE", "CPUS", "GPUS", "WORKERS", "LABELS", "VERSION", "CERTIFICATE"}};
  for (const auto& each : nodes)
    rows.push_back(row_of(each));
  std::array<std::size_t, std::tuple_size_v<row>> widths{};
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

std::string json_of(const std::vector<runtime::asked_node>& nodes) {
  auto out = nlohmann::ordered_json::array();
  for (const auto& each : nodes)
    out.push_back(runtime::to_json(each));
  return out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

expected<std::string> find_node(const std::vector<runtime::asked_node>& nodes, const std::string& name) {
  std::vector<std::string> found;
  for (const auto& each : nodes) {
    if (each.address == name)
      return name;
    const auto where = parse_endpoint(each.address);
    if ((each.report && each.report->host == name) || (where && where->host == name))
      found.push_back(each.address);
  }
  if (found.empty())
    return fail(errc::not_found, fmt::format("none of the nodes is on {}: `troupe nodes` lists them", name));
  if (found.size() > 1)
    return fail(errc::invalid_argument, fmt::format("{} nodes are on {}: name one by its address: {}", found.size(),
                                                    name, fmt::join(found, ", ")));
  return found.front();
}

} // namespace troupe::tool
