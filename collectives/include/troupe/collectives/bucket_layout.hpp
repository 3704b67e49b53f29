#pragma once

#include <troupe/dtype.hpp>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::collectives {

/// The alignment of segments, slices and buffers: one cache line, and the widest vector register.
inline constexpr std::size_t alignment_bytes = 64;

/// A half-open interval of byte offsets.
struct byte_range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return last - first; }

  auto operator<=>(const byte_range&) const = default;
};

/// Elements of one type that lie together in a bucket.
struct bucket_segment {
  dtype type = dtype::f32;
  std::uint64_t elements = 0;

  bool operator==(const bucket_segment&) const = default;
};

/// Where tensors lie in one flat buffer that is reduced as a whole. Every segment starts on a 64-byte boundary, and the
/// padding behind it counts as elements of its type, which are zero.
class bucket_layout {
 public:
  bucket_layout() = default;
  explicit bucket_layout(std::vector<bucket_segment> segments);

  [[nodiscard]] const std::vector<bucket_segment>& segments() const noexcept { return segments_; }

  /// Where segment `i` starts; for `i` = number of segments, the size of the bucket.
  [[nodiscard]] std::uint64_t offset_bytes(std::size_t i) const noexcept { return offsets_[i]; }

  /// The size of the bucket, a multiple of 64.
  [[nodiscard]] std::uint64_t size_bytes() const noexcept { return offsets_.back(); }

  /// The segment in which the byte at `offset` lies; the number of segments for the size of the bucket.
  [[nodiscard]] std::size_t segment_at(std::uint64_t offset) const noexcept;

  /// The layout of sums of such buckets: 16-bit floats become f32. Equal to this one where there are none.
  [[nodiscard]] bucket_layout sums() const;

  /// Where in a bucket of `sums()` the element at `offset` lies, up to and with the end of the bucket. 64-byte
  /// boundaries stay such: in `sums()` a 16-bit segment is padded to twice the bytes that it has here.
  [[nodiscard]] std::uint64_t offset_in_sums(std::uint64_t offset) const noexcept;

  /// The part `range` (on 64-byte boundaries) as a layout of its own, whose bytes are exactly those of the range: the
  /// padding in it counts as elements.
  [[nodiscard]] bucket_layout part(byte_range range) const;

  bool operator==(const bucket_layout&) const = default;

 private:
  std::vector<bucket_segment> segments_;
  std::vector<std::uint64_t> offsets_ = {0};
  /// Where the segments lie in a bucket of `sums()`.
  std::vector<std::uint64_t> sum_offsets_ = {0};
};

} // namespace troupe::collectives
