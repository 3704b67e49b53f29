#pragma once

#include <cstdint>
#include <vector>

namespace troupe::xgboost {

/// The connections of a rank in XGBoost's collective layer (rabit). Ranks are `int` there; -1 means none.
struct rabit_links {
  /// In the tree, which carries sums and broadcasts.
  std::int32_t parent = -1;
  /// Parent and children.
  std::vector<std::int32_t> tree;
  /// In the ring, which is ordered by rank.
  std::int32_t previous = -1;
  std::int32_t next = -1;
  /// All of these without duplicates, ascending.
  std::vector<std::int32_t> all;

  bool operator==(const rabit_links&) const = default;
};

/// The tree is a binary heap, the ring follows the ranks. Pure.
[[nodiscard]] rabit_links links_of(std::int32_t rank, std::int32_t world_size);

} // namespace troupe::xgboost
