#pragma once

#include <troupe/dtype.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::collectives {

/// The alignment of segments, slices and buffers: a cache line, which is also the widest vector register.
inline constexpr std::size_t alignment_bytes = 64;

/// A half-open interval of byte offsets.
struct byte_range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return last - first; }

  auto operator<=>(const byte_range&) const = default;
};

/// Consecutive elements of one type in a bucket.
struct bucket_segment {
  dtype type = dtype::f32;
  std::uint64_t elements = 0;

  bool operator==(const bucket_segment&) const = default;
};

/// The layout of tensors in one flat buffer that is reduced as a whole. Every segment starts on a 64-byte boundary. The
/// padding after it counts as zero elements of its type.
class bucket_layout {
 public:
  bucket_layout() = default;
  explicit bucket_layout(std::vector<bucket_segment> segments);

  [[nodiscard]] const std::vector<bucket_segment>& segments() const noexcept { return segments_; }

  /// Where segment `i` starts. For `i` equal to the number of segments, the size of the bucket.
  [[nodiscard]] std::uint64_t offset_bytes(std::size_t i) const noexcept { return offsets_[i]; }

  /// The size of the bucket, a multiple of 64.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return offsets_.back(); }

  /// The segment that contains the byte at `offset`. For the size of the bucket, the number of segments.
  [[nodiscard]] std::size_t segment_at(std::uint64_t offset) const noexcept;

  /// The layout of sums over such buckets: 16-bit floats become f32. Equal to this layout if it has none.
  [[nodiscard]] bucket_layout sums() const;

  /// The offset in a bucket of `sums()` of the element at `offset`, which may be the end of the bucket. 64-byte
  /// boundaries map to 64-byte boundaries: in `sums()` a 16-bit segment is padded to twice its size here.
  [[nodiscard]] std::uint64_t offset_in_sums(std::uint64_t offset) const noexcept;

  /// The part `range` (on 64-byte boundaries) as a layout of its own with exactly those bytes: padding in it counts as
  /// elements.
  [[nodiscard]] bucket_layout part(byte_range range) const;

  bool operator==(const bucket_layout&) const = default;

 private:
  std::vector<bucket_segment> segments_;
  std::vector<std::uint64_t> offsets_ = {0};
  /// The offsets of the segments in a bucket of `sums()`.
  std::vector<std::uint64_t> sum_offsets_ = {0};
};

} // namespace troupe::collectives
