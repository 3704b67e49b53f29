#pragma once

#include <troupe/collectives/summation_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::collectives {

/// In what order the contributions of one worker's shards are added along the canonical tree, and in which buffers:
/// what all accumulators do, wherever their buffers lie. Works like a binary counter. A plain class: it adds nothing.
///
/// A mistake of the caller's throws `std::logic_error`.
class accumulation_plan {
 public:
  /// One operation on buffers of sums, to be done for some bytes or all: take over the contribution, become +0, or add
  /// `source` from the right.
  struct operation {
    enum class kind : std::uint8_t { widen, clear, add };
    kind what;
    std::size_t target;
    std::size_t source;
  };

  struct entry {
    tree_node node;
    std::size_t buffer;
  };

  /// With `widens` a contribution is not written into its buffer of sums, but taken over from elsewhere.
  accumulation_plan(std::uint32_t shards, bool widens) : shards_(shards), widens_(widens) {}

  /// Starts a step, whose shards are those of `range`, inside [0, shards).
  void begin(shard_range range);

  /// Plans all that comes before the contribution of `shard`. Shards come in ascending order; one that is left out
  /// contributes +0.
  void advance_to(shard_id shard);

  /// Forgets the operations so far, which have been done, and gives the buffer of the shard that is next.
  std::size_t open_contribution();

  /// No shard follows: plans the rest.
  void close();

  [[nodiscard]] bool is_closed() const noexcept { return closed_; }

  /// What completes the last contribution and the zeros around it; in this order, for any part of the buffers.
  [[nodiscard]] std::span<const operation> operations() const noexcept { return operations_; }

  /// The sums so far, left to right; after `close` those of the range.
  [[nodiscard]] std::span<const entry> sums() const noexcept { return stack_; }

  /// How many buffers the operations and sums so far speak of, in this step or one before.
  [[nodiscard]] std::size_t buffers() const noexcept { return buffers_; }

  [[nodiscard]] std::uint32_t shards() const noexcept { return shards_; }

 private:
  void push_leaf();
  void plan_contribution();
  void plan_zeros_until(std::uint32_t shard);
  void plan_joins();

  std::uint32_t shards_;
  bool widens_;
  shard_range range_;
  /// The shard whose leaf is on top of the stack is `cursor_ - 1`.
  std::uint32_t cursor_ = 0;
  /// Whether that leaf is a contribution that is not joined, nor widened, yet.
  bool contributed_ = false;
  bool closed_ = false;
  std::size_t buffers_ = 0;
  std::vector<operation> operations_;
  std::vector<std::size_t> free_;
  std::vector<entry> stack_;
};

} // namespace troupe::collectives
