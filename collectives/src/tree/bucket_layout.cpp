#include <troupe/collectives/bucket_layout.hpp>
#include <troupe/collectives/reduction.hpp>

#include <algorithm>
#include <utility>

namespace troupe::collectives {

namespace {

bool is_half(dtype type) noexcept {
  return sum_type(type) != type;
}

} // namespace

bucket_layout::bucket_layout(std::vector<bucket_segment> segments) : segments_(std::move(segments)) {
  offsets_.reserve(segments_.size() + 1);
  sum_offsets_.reserve(segments_.size() + 1);
  for (const auto& segment : segments_) {
    const auto end = offsets_.back() + segment.elements * size_of(segment.type);
    const auto begin = offsets_.back();
    offsets_.push_back((end + alignment_bytes - 1) / alignment_bytes * alignment_bytes);
    sum_offsets_.push_back(sum_offsets_.back() + (offsets_.back() - begin) * (is_half(segment.type) ? 2 : 1));
  }
}

std::size_t bucket_layout::segment_at(std::uint64_t offset) const noexcept {
  const auto behind = std::upper_bound(offsets_.begin(), offsets_.end(), offset);
  return static_cast<std::size_t>(behind - offsets_.begin()) - 1;
}

bucket_layout bucket_layout::sums() const {
  constexpr auto elements_of_a_line = alignment_bytes / 2;
  auto result = segments_;
  for (auto& segment : result)
    if (is_half(segment.type))
      segment = {dtype::f32, (segment.elements + elements_of_a_line - 1) / elements_of_a_line * elements_of_a_line};
  return bucket_layout{std::move(result)};
}

std::uint64_t bucket_layout::offset_in_sums(std::uint64_t offset) const noexcept {
  const auto i = segment_at(offset);
  const auto inside = offset - offsets_[i];
  return sum_offsets_[i] + (i < segments_.size() && is_half(segments_[i].type) ? 2 * inside : inside);
}

bucket_layout bucket_layout::part(byte_range range) const {
  std::vector<bucket_segment> result;
  for (auto i = segment_at(range.first); i < segments_.size() && offsets_[i] < range.last; ++i) {
    const auto first = std::max(range.first, offsets_[i]);
    const auto last = std::min(range.last, offsets_[i + 1]);
    if (first < last)
      result.push_back({segments_[i].type, (last - first) / size_of(segments_[i].type)});
  }
  return bucket_layout{std::move(result)};
}

} // namespace troupe::collectives
