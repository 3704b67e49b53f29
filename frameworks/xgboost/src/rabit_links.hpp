#pragma once

#include <cstdint>
#include <vector>

namespace troupe::xgboost {

/// Whom a rank of XGBoost's collective layer (rabit) is connected with. Ranks are `int` there; -1 stands for nobody.
struct rabit_links {
  /// In the tree over which sums and broadcasts go.
  std::int32_t parent = -1;
  /// Parent and children.
  std::vector<std::int32_t> tree;
  /// In the ring, which is in order of rank.
  std::int32_t previous = -1;
  std::int32_t next = -1;
  /// All of these, each once, in order.
  std::vector<std::int32_t> all;

  bool operator==(const rabit_links&) const = default;
};

/// A binary heap, and a ring. Pure.
[[nodiscard]] rabit_links links_of(std::int32_t rank, std::int32_t world_size);

} // namespace troupe::xgboost
