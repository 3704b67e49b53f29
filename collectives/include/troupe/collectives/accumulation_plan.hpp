#pragma once

#include <troupe/collectives/summation_tree.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe::collectives {

/// The order in which one worker adds the contributions of its shards along the canonical tree, and the buffers it adds
/// them in. All accumulators follow it, on the host and on devices. It counts like a binary counter and does no
/// arithmetic itself.
///
/// Misuse throws `std::logic_error`.
class accumulation_plan {
 public:
  /// One operation on buffers of sums, applied to all bytes or to a part: `widen` copies a contribution into `target`
  /// in the type of sums, `clear` sets `target` to +0, `add` adds `source` to `target` from the right.
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

  /// With `widens`, contributions are written elsewhere and an operation widens them into their buffer of sums.
  accumulation_plan(std::uint32_t shards, bool widens) : shards_(shards), widens_(widens) {}

  /// Starts a step. `range` has this worker's shards and lies in [0, shards).
  void begin(shard_range range);

  /// Plans everything that precedes the contribution of `shard`. Shards come in ascending order; a skipped shard
  /// contributes +0.
  void advance_to(shard_id shard);

  /// Drops the operations planned so far, which the caller has executed, and returns the buffer for the next shard.
  std::size_t open_contribution();

  /// Plans the rest: no shard follows.
  void close();

  [[nodiscard]] bool is_closed() const noexcept { return stage_ == stage::closed; }

  /// The operations that complete the last contribution and the zeros around it, in execution order. They apply to any
  /// part of the buffers.
  [[nodiscard]] std::span<const operation> operations() const noexcept { return operations_; }

  /// The sums so far, from left to right; after `close`, the sums of the range.
  [[nodiscard]] std::span<const entry> sums() const noexcept { return stack_; }

  /// The number of buffers that this step and earlier ones refer to.
  [[nodiscard]] std::size_t buffers() const noexcept { return buffers_; }

  [[nodiscard]] std::uint32_t shards() const noexcept { return shards_; }

 private:
  enum class stage : std::uint8_t {
    open,
    /// The leaf on top of the stack is a contribution that is neither joined nor widened yet.
    contributed,
    closed,
  };

  void push_leaf();
  void plan_contribution();
  void plan_zeros_until(std::uint32_t shard);
  void plan_joins();

  std::uint32_t shards_;
  bool widens_;
  shard_range range_;
  /// The shard whose leaf is on top of the stack is `cursor_ - 1`.
  std::uint32_t cursor_ = 0;
  stage stage_ = stage::open;
  std::size_t buffers_ = 0;
  std::vector<operation> operations_;
  std::vector<std::size_t> free_;
  std::vector<entry> stack_;
};

} // namespace troupe::collectives
