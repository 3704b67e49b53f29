#include <troupe/serialization/checkpoint/chunk_plan.hpp>

#include <troupe/error.hpp>

#include <algorithm>
#include <fmt/format.h>

namespace troupe::serialization {

namespace {

std::uint64_t pages_of(std::uint64_t size_bytes) {
  return size_bytes / chunk_alignment_bytes + (size_bytes % chunk_alignment_bytes != 0);
}

void require_valid(std::uint32_t parts, std::uint64_t limit_bytes) {
  if (parts == 0)
    throw exception{errc::invalid_argument, "a checkpoint needs at least one part"};
  if (limit_bytes == 0 || limit_bytes > max_chunk_bytes || limit_bytes % chunk_alignment_bytes != 0)
    throw exception{errc::invalid_argument,
                    fmt::format("a chunk limit of {} bytes: it must be a positive multiple of {}, at most {}",
                                limit_bytes, chunk_alignment_bytes, max_chunk_bytes)};
}

/// Walks along the sequence of pages and cuts it.
class planner {
 public:
  planner(std::uint64_t total_pages, std::uint32_t parts, std::uint64_t limit_bytes)
      : limit_bytes_(limit_bytes), share_(total_pages / parts), rest_(total_pages % parts) {
    plan_.part_sizes_bytes.reserve(parts);
    for (std::uint32_t part = 0; part < parts; ++part)
      plan_.part_sizes_bytes.push_back((share_ + (part < rest_)) * chunk_alignment_bytes);
  }

  void add(std::uint32_t tensor, std::uint64_t size_bytes) {
    auto done = std::uint64_t{0};
    for (std::uint32_t chunk = 0; done < size_bytes; ++chunk) {
      leave_full_parts();
      auto room = plan_.part_sizes_bytes[part_] - offset_bytes_;
      auto length = std::min({size_bytes - done, limit_bytes_, room});
      plan_.chunks.push_back({tensor, chunk, done, length, part_, offset_bytes_});
      done += length;
      offset_bytes_ += round_up_to_page(length);
    }
  }

  chunk_plan take() { return std::move(plan_); }

 private:
  void leave_full_parts() {
    while (offset_bytes_ == plan_.part_sizes_bytes[part_]) {
      ++part_;
      offset_bytes_ = 0;
    }
  }

  std::uint64_t limit_bytes_;
  std::uint64_t share_;
  std::uint64_t rest_;
  std::uint32_t part_ = 0;
  std::uint64_t offset_bytes_ = 0;
  chunk_plan plan_;
};

} // namespace

std::span<const planned_chunk> chunk_plan::chunks_of(std::uint32_t part) const {
  auto found = std::ranges::equal_range(chunks, part, {}, &planned_chunk::part);
  return {found.begin(), found.end()};
}

chunk_plan plan_chunks(std::span<const tensor_spec> tensors, std::uint32_t parts, std::uint64_t limit_bytes) {
  require_valid(parts, limit_bytes);
  auto total_pages = std::uint64_t{0};
  for (const auto& tensor : tensors)
    total_pages += pages_of(tensor.size_bytes());
  auto result = planner{total_pages, parts, limit_bytes};
  for (std::uint32_t i = 0; i < tensors.size(); ++i)
    result.add(i, tensors[i].size_bytes());
  return result.take();
}

} // namespace troupe::serialization
