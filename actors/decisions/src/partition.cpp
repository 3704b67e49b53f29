#include <troupe/actors/decisions/partition.hpp>

#include <algorithm>
#include <compare>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace troupe::actors {

namespace {

/// A number of members. One member with the state outweighs any number without it.
struct weight {
  std::uint64_t with_state = 0;
  std::uint64_t all = 0;

  auto operator<=>(const weight&) const = default;
};

struct node_facts {
  weight members;
  /// Its lowest rank.
  std::uint32_t first = 0;
};

/// The nodes that are left, and the cuts between them.
class topology {
 public:
  explicit topology(std::span<const member_reach> members) {
    for (std::uint32_t rank = 0; rank < members.size(); ++rank) {
      const auto& from = members[rank];
      auto& facts = nodes_.try_emplace(from.node, node_facts{{}, rank}).first->second;
      ++facts.members.all;
      facts.members.with_state += from.has_state ? 1 : 0;
      for (auto to : from.unreachable)
        if (to.value < members.size() && members[to.value].node != from.node)
          unanswered_.emplace(from.node, members[to.value].node);
    }
  }

  /// The node to give up next: the one cut off from the most members, and of these the one with the fewest members. Of
  /// equal nodes, one that the node with the lowest rank cannot reach, so that the lowest rank's side stays.
  [[nodiscard]] std::optional<std::uint32_t> worst() const {
    std::vector<std::uint32_t> equal;
    auto highest = weight{};
    auto fewest = weight{};
    for (const auto& [node, facts] : nodes_) {
      const auto cost = members_cut_off_from(node);
      if (cost == weight{} || cost < highest || (cost == highest && facts.members > fewest))
        continue;
      if (cost > highest || facts.members < fewest)
        equal.clear();
      equal.push_back(node);
      highest = cost;
      fewest = facts.members;
    }
    if (equal.empty())
      return std::nullopt;
    const auto first_rank = [this](std::uint32_t node) { return nodes_.at(node).first; };
    const auto lowest = *std::ranges::min_element(equal, {}, first_rank);
    if (std::ranges::any_of(equal, [&](auto node) { return is_cut(lowest, node); }))
      std::erase_if(equal, [&](auto node) { return !is_cut(lowest, node); });
    return *std::ranges::max_element(equal, {}, first_rank);
  }

  void give_up(std::uint32_t node) { nodes_.erase(node); }

 private:
  [[nodiscard]] bool is_cut(std::uint32_t a, std::uint32_t b) const {
    return unanswered_.contains({a, b}) && unanswered_.contains({b, a});
  }
  [[nodiscard]] weight members_cut_off_from(std::uint32_t node) const {
    weight result;
    for (const auto& [other, facts] : nodes_)
      if (is_cut(node, other)) {
        result.with_state += facts.members.with_state;
        result.all += facts.members.all;
      }
    return result;
  }

  std::map<std::uint32_t, node_facts> nodes_;
  /// Pairs of nodes, the second of which does not answer the first.
  std::set<std::pair<std::uint32_t, std::uint32_t>> unanswered_;
};

} // namespace

std::vector<std::uint32_t> choose_nodes_cut_off(std::span<const member_reach> members) {
  topology left{members};
  std::vector<std::uint32_t> result;
  while (const auto worst = left.worst()) {
    result.push_back(*worst);
    left.give_up(*worst);
  }
  return result;
}

} // namespace troupe::actors
