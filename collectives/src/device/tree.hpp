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

/// Device memory that one stream's work overwrites again and again. When it grows, the old block is kept: the stream
/// may still be using it.
class device_scratch {
 public:
  explicit device_scratch(std::shared_ptr<device> where) : where_(std::move(where)) {}

  [[nodiscard]] expected<std::byte*> reserve(std::uint64_t size_bytes);

 private:
  std::shared_ptr<device> where_;
  std::vector<device_memory> blocks_;
};

/// The `slice_reducer` of devices: runs kernels on one stream.
class device_tree {
 public:
  explicit device_tree(std::shared_ptr<device> where) : where_(where), scratch_(std::move(where)) {}

  /// Submits the reduction of one slice (of `layout`, on 64-byte boundaries) along `plan`, which has one output, to
  /// `stream`. `operands`, in the plan's order, are sums; they and `out` start at the slice's first element.
  [[nodiscard]] expected<void> reduce(const finish_plan& plan, const bucket_layout& layout, std::uint64_t divisor,
                                      std::span<const std::byte* const> operands, byte_range slice, std::byte* out,
                                      stream_handle stream);

  /// Turns a finished sum into the result: divides and rounds. The two may share memory.
  [[nodiscard]] expected<void> finish(const bucket_layout& layout, std::uint64_t divisor, const std::byte* sum,
                                      byte_range slice, std::byte* out, stream_handle stream);

  /// Adds 2, 4 or 8 sums. `sums` is the layout of sums, and `range` a part of it.
  [[nodiscard]] expected<void> add(const bucket_layout& sums, std::span<const std::byte* const> operands,
                                   byte_range range, std::byte* out, stream_handle stream) {
    return run(sums.part(range), operands, out, false, 1, stream);
  }

  /// Converts elements of the layout to sums.
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
