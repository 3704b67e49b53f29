#pragma once

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace troupe::collectives {

/// The sum over one subtree: a whole bucket, borrowed.
struct leaf_partial {
  tree_node node;
  const std::byte* data = nullptr;
};

/// Adds up the contributions of one worker's shards along the canonical tree. Works like a binary counter, so that only
/// about log2(shards) + 1 buckets live at a time (twice that for a range that starts and ends in the middle of
/// subtrees). After the first step nothing is allocated.
///
///     sums.begin(range);
///     for (auto shard : range)
///       add_gradients(sums.next(shard));
///     sums.end();
///     communicator.reduce_leaves(layout, shards, ownership, sums.partials(), result);
class leaf_accumulator {
 public:
  /// Fails with `errc::invalid_argument` if a segment's type cannot be summed, or `shards` is 0.
  [[nodiscard]] static expected<leaf_accumulator> make(bucket_layout layout, std::uint32_t shards);

  /// Starts a step: forgets the partial sums of the last one. `range` lies in [0, shards).
  void begin(shard_range range);

  /// The zeroed bucket, on a 64-byte boundary, into which the caller adds this shard's contribution. Valid until the
  /// next call. Shards come in ascending order; one that is left out contributes +0. Throws `std::logic_error` for a
  /// shard out of order or outside the range.
  [[nodiscard]] std::span<std::byte> next(shard_id shard);

  /// Ends the step: `partials()` are complete.
  void end();

  /// After `end()`: the sums of `maximal_nodes` of the range, left to right. Valid until the next `begin()`.
  [[nodiscard]] std::span<const leaf_partial> partials() const noexcept { return partials_; }

  [[nodiscard]] const bucket_layout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::uint32_t shards() const noexcept { return shards_; }

  /// The number of buckets allocated so far.
  [[nodiscard]] std::size_t buffers() const noexcept { return buffers_.size(); }

 private:
  struct entry {
    tree_node node;
    std::size_t buffer;
  };

  leaf_accumulator(bucket_layout layout, std::uint32_t shards) : layout_(std::move(layout)), shards_(shards) {}

  void push_leaf();
  void join();
  std::size_t take_buffer();

  bucket_layout layout_;
  std::uint32_t shards_ = 0;
  shard_range range_;
  /// The shard whose leaf is on top of the stack is `cursor_ - 1`.
  std::uint32_t cursor_ = 0;
  std::vector<aligned_buffer> buffers_;
  std::vector<std::size_t> free_;
  std::vector<entry> stack_;
  std::vector<leaf_partial> partials_;
};

} // namespace troupe::collectives
