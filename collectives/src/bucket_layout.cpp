#include <troupe/collectives/bucket_layout.hpp>

#include <utility>

namespace troupe::collectives {

bucket_layout::bucket_layout(std::vector<bucket_segment> segments) : segments_(std::move(segments)) {
  offsets_.reserve(segments_.size() + 1);
  for (const auto& segment : segments_) {
    const auto end = offsets_.back() + segment.elements * size_of(segment.type);
    offsets_.push_back((end + alignment_bytes - 1) / alignment_bytes * alignment_bytes);
  }
}

byte_range bucket_layout::slice(std::uint32_t rank, std::uint32_t world_size) const noexcept {
  const auto lines = size_bytes() / alignment_bytes;
  // Quotient and remainder apart, so that no product overflows.
  const auto bound = [&](std::uint64_t r) {
    return (lines / world_size * r + lines % world_size * r / world_size) * alignment_bytes;
  };
  return {bound(rank), bound(std::uint64_t{rank} + 1)};
}

} // namespace troupe::collectives
