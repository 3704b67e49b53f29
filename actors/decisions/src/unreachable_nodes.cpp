#include <troupe/actors/decisions/unreachable_nodes.hpp>

namespace troupe::actors {

std::optional<unreachable_nodes::silence> unreachable_nodes::remove(std::uint32_t node) {
  auto found = nodes_.extract(node);
  return found.empty() ? std::nullopt : std::optional{std::move(found.mapped())};
}

std::optional<unreachable_nodes::silence> unreachable_nodes::on_answer(std::uint32_t node, run_time now) {
  auto result = remove(node);
  if (result)
    last_answer_ = now;
  return result;
}

std::vector<std::uint32_t> unreachable_nodes::silent_for(std::chrono::milliseconds limit, run_time now) const {
  std::vector<std::uint32_t> result;
  for (const auto& [node, x] : nodes_)
    if (now - x.since >= limit)
      result.push_back(node);
  return result;
}

} // namespace troupe::actors
