#pragma once

#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/tensor.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace troupe::serialization {

/// A contiguous range of one tensor's bytes, stored contiguously in one part.
struct planned_chunk {
  /// Index of the tensor.
  std::uint32_t tensor = 0;
  /// Index among the tensor's chunks.
  std::uint32_t chunk = 0;
  /// Offset of the bytes in the tensor.
  std::uint64_t tensor_offset_bytes = 0;
  std::uint64_t length_bytes = 0;
  std::uint32_t part = 0;
  /// Offset of the bytes in the part's file.
  std::uint64_t offset_bytes = 0;

  bool operator==(const planned_chunk&) const = default;
};

/// The space that a chunk of this size takes in a part's file.
[[nodiscard]] constexpr std::uint64_t round_up_to_page(std::uint64_t size_bytes) {
  return (size_bytes / chunk_alignment_bytes + (size_bytes % chunk_alignment_bytes != 0)) * chunk_alignment_bytes;
}

/// Which bytes of a state are stored where.
struct chunk_plan {
  /// The size of each part's file; bytes that no chunk covers are zero.
  std::vector<std::uint64_t> part_sizes_bytes;
  /// Ordered by tensor and chunk, which is also the order of part and offset.
  std::vector<planned_chunk> chunks;

  /// The chunks of one part.
  [[nodiscard]] std::span<const planned_chunk> chunks_of(std::uint32_t part) const;

  bool operator==(const chunk_plan&) const = default;
};

/// Cuts tensors into chunks and distributes them over `parts` parts. Pure: every process that knows the tensors
/// computes the same plan. The tensors, each rounded up to whole pages, form one sequence, which is cut into `parts`
/// parts whose sizes differ by at most one page; a part is cut into chunks where a tensor ends and after every
/// `limit_bytes`. A tensor without elements has no chunk; a part without chunks is an empty file. Throws `exception`
/// with `errc::invalid_argument` unless `parts` is at least 1 and `limit_bytes` a positive multiple of
/// `chunk_alignment_bytes`, at most `max_chunk_bytes`.
[[nodiscard]] chunk_plan plan_chunks(std::span<const tensor_spec> tensors, std::uint32_t parts,
                                     std::uint64_t limit_bytes = max_chunk_bytes);

} // namespace troupe::serialization
