#pragma once

#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/step.hpp>

#include <cstddef>
#include <span>
#include <vector>

namespace troupe::runtime {

/// A plan, and where its gradient lies.
struct loop_plan : step_plan {
  bool on_gpu = false;
};

/// The layout of a step's bucket: the gradient (f32), followed by the sums of the metrics (f64). A long gradient is cut
/// into parts that are reduced one by one; the metrics are then a separate part, which is complete last.
class step_bucket {
 public:
  explicit step_bucket(const step_plan& plan);

  [[nodiscard]] const collectives::bucket_layout& layout() const noexcept { return layout_; }
  [[nodiscard]] std::span<const collectives::byte_range> parts() const noexcept { return parts_; }
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return layout_.size_bytes(); }
  [[nodiscard]] std::uint64_t metrics_offset() const noexcept { return layout_.offset_bytes(1); }
  /// How many of the parts, the first ones, are the gradient's.
  [[nodiscard]] std::size_t gradient_parts() const noexcept { return gradient_parts_; }
  /// The elements of the gradient in a part.
  [[nodiscard]] std::uint64_t gradient_elements(std::size_t part) const noexcept;
  /// All ranks reduce the parts in the same order: the gradient's from its end to its begin, as a backward pass
  /// completes them, then the metrics.
  [[nodiscard]] std::size_t part_at(std::size_t turn) const noexcept {
    return turn < gradient_parts_ ? gradient_parts_ - 1 - turn : turn;
  }

 private:
  std::uint64_t elements_;
  collectives::bucket_layout layout_;
  std::vector<collectives::byte_range> parts_;
  std::size_t gradient_parts_;
};

} // namespace troupe::runtime
