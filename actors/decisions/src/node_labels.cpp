#include <troupe/actors/decisions/node_labels.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace troupe::actors {

bool has_labels(const node_labels& labels, const node_labels& wanted) {
  return std::ranges::all_of(wanted, [&labels](const auto& each) {
    const auto found = labels.find(each.first);
    return found != labels.end() && found->second == each.second;
  });
}

std::string describe(const node_labels& labels) {
  std::string result;
  for (const auto& [name, value] : labels)
    result += fmt::format("{}{}={}", result.empty() ? "" : ", ", name, value);
  return result;
}

} // namespace troupe::actors
