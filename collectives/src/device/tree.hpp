#pragma once

#include "tree/tree_reduction.hpp"

#include <troupe/collectives/device.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace troupe::collectives {

/// Device memory that is overwritten again and again by the work of one stream. What it grew out of is kept: the stream
/// may still be using it.
class device_scratch {
 public:
  explicit device_scratch(std::shared_ptr<device> where) : where_(std::move(where)) {}

  [[nodiscard]] expected<std::byte*> reserve(std::uint64_t size_bytes);

 private:
  std::shared_ptr<device> where_;
  std::vector<device_memory> blocks_;
};

/// What `slice_reducer` does, by kernels on one stream.
class device_tree {
 public:
  explicit device_tree(std::shared_ptr<device> where) : where_(where), scratch_(std::move(where)) {}

  /// Puts the reduction of one slice (of `layout`, on 64-byte boundaries) along `plan`, which ends in one output, on
  /// `stream`. `operands`, in the plan's order, are sums, and begin at the slice's first element, as `out` does.
  [[nodiscard]] expected<void> reduce(const finish_plan& plan, const bucket_layout& layout, std::uint64_t divisor,
                                      std::span<const std::byte* const> operands, byte_range slice, std::byte* out,
                                      stream_handle stream);

  /// What becomes of a finished sum, which may be where the result goes: divided and rounded.
  [[nodiscard]] expected<void> finish(const bucket_layout& layout, std::uint64_t divisor, const std::byte* sum,
                                      byte_range slice, std::byte* out, stream_handle stream);

  /// Adds 2, 4 or 8 sums; `sums` is the layout of sums, and `range` a part of it.
  [[nodiscard]] expected<void> add(const bucket_layout& sums, std::span<const std::byte* const> operands,
                                   byte_range range, std::byte* out, stream_handle stream) {
    return run(sums.part(range), operands, out, false, 1, stream);
  }

  /// From elements of the layout to sums.
  [[nodiscard]] expected<void> widen(const bucket_layout& layout, const std::byte* in, byte_range slice, std::byte* out,
                                     stream_handle stream);

 private:
  [[nodiscard]] expected<void> run(const bucket_layout& pieces, std::span<const std::byte* const> operands,
                                   std::byte* out, bool is_final, std::uint64_t divisor, stream_handle stream);

  std::shared_ptr<device> where_;
  device_scratch scratch_;
  std::vector<const std::byte*> at_;
  std::vector<tree_step> steps_;
  std::size_t planned_operands_ = 0;
  std::vector<tree_addition> planned_;
};

} // namespace troupe::collectives
