#pragma once

#include <troupe/collectives/accumulation_plan.hpp>
#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <span>
#include <vector>

namespace troupe::collectives {

/// The sum over one subtree: a whole bucket, borrowed.
struct leaf_partial {
  tree_node node;
  const std::byte* data = nullptr;
};

/// Adds the contributions of one worker's shards along the canonical tree. It works like a binary counter, so only
/// about log2(shards) + 1 buckets of sums exist at a time: twice that for a range that starts and ends in the middle of
/// subtrees, and one contribution more if the layout has 16-bit floats, which are widened before they are added.
/// Allocates nothing after the first step.
///
///     sums.begin(range);
///     for (auto shard : range)
///       add_gradients(sums.next(shard));
///     sums.end();
///     communicator.reduce_leaves(layout, shards, ownership, sums.partials(), result);
class leaf_accumulator {
 public:
  /// Fails with `errc::invalid_argument` if a segment's type cannot be summed or `shards` is 0. Allocates the partial
  /// sums from `memory`, which outlives the accumulator; a communicator's memory saves copies.
  [[nodiscard]] static expected<leaf_accumulator>
  make(bucket_layout layout, std::uint32_t shards,
       std::pmr::memory_resource& memory = *std::pmr::new_delete_resource());

  /// Starts a step and discards the partial sums of the last one. `range` lies in [0, shards).
  void begin(shard_range range);

  /// The zeroed bucket of `layout()`, on a 64-byte boundary, to which the caller adds this shard's contribution.
  /// Writable until the next call of `next` or `end`; after `close`, each part until it is finished. Shards come in
  /// ascending order; a skipped shard contributes +0. Throws `std::logic_error` for a shard out of order or outside the
  /// range, and after `close` or `end`.
  [[nodiscard]] std::span<std::byte> next(shard_id shard);

  /// Ends the step and completes `partials()`. After `close`, finishes what is not finished yet.
  void end();

  /// End the step piece by piece while the last shard's contribution is still being written. `close` says that no shard
  /// follows. `finish` says that this part of the last contribution (64-byte boundaries of `layout()`) is written, and
  /// completes that part of the partial sums. Each byte is finished once. They throw `std::logic_error` for a second
  /// `close`, and for a part before it, outside the bucket, off the boundaries or already finished.
  void close();
  void finish(byte_range range);

  /// After `end()` or `close()`: the sums of the range's `maximal_nodes`, from left to right, each a bucket of
  /// `layout().sums()`. Valid until the next `begin()`.
  [[nodiscard]] std::span<const leaf_partial> partials() const noexcept { return partials_; }

  [[nodiscard]] const bucket_layout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::uint32_t shards() const noexcept { return plan_.shards(); }

  /// The number of buckets of sums allocated so far.
  [[nodiscard]] std::size_t buffers() const noexcept { return buffers_.size(); }

 private:
  leaf_accumulator(bucket_layout layout, std::uint32_t shards, std::pmr::memory_resource& memory);

  [[nodiscard]] bool is_narrow() const noexcept { return sums_.size_bytes() != layout_.size_bytes(); }
  void run(byte_range range) noexcept;
  /// Allocates all buffers that the plan refers to.
  void make_buffers();

  bucket_layout layout_;
  bucket_layout sums_;
  std::pmr::memory_resource* memory_;
  accumulation_plan plan_;
  /// The parts finished after `close`: disjoint, ascending, never adjacent.
  std::vector<byte_range> finished_;
  aligned_buffer contribution_;
  std::vector<aligned_buffer> buffers_;
  std::vector<leaf_partial> partials_;
};

} // namespace troupe::collectives
