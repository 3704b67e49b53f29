#pragma once

#include <troupe/train_context.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::runtime {

/// A shard that is computed twice in a step: by its owner, and by another rank; by the owner again if there is no
/// other.
struct redundant_check {
  shard_id shard;
  rank_id owner;
  rank_id other;

  bool operator==(const redundant_check&) const = default;
};

/// The shard of this step that is computed twice, if any: one in every `every`th step, in turn, and in each round by
/// another rank. `every` 0: none. Pure, so all ranks decide alike.
[[nodiscard]] std::optional<redundant_check>
choose_redundant_check(step_id step, std::uint64_t every, std::uint32_t shards, std::span<const shard_range> ownership);

/// The parts in which a contribution is compared: the named tensors, in order, and the rest of the gradient between
/// them.
[[nodiscard]] std::vector<gradient_tensor> parts_of_gradient(std::vector<gradient_tensor> named,
                                                             std::uint64_t elements);

/// How far apart two parts are, number by number.
struct part_difference {
  std::uint64_t elements = 0;
  std::uint64_t different = 0;
  /// Of the absolute differences; not a number where only one side is a number.
  double largest = 0;

  bool operator==(const part_difference&) const = default;
};

/// Compares bits. Both sides have the same size.
template <class T>
[[nodiscard]] part_difference difference_of(std::span<const T> a, std::span<const T> b);

/// For people: which of these parts differ, the first of them by how much, and what that can come from. `frameworks`
/// says what their arithmetic depends on.
[[nodiscard]] std::string describe_disagreement(step_id step, const redundant_check& what,
                                                std::span<const std::string> parts, const part_difference& first,
                                                const std::string& frameworks);

} // namespace troupe::runtime
