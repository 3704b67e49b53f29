#pragma once

#include "shm/group.hpp"

#include <troupe/collectives/communicator.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace troupe::collectives {

/// A bucket whose slices stay in the memory of the ranks that finished them. The slices are mapped side by side, so it
/// is contiguous and nothing is copied. The mappings keep the memory alive even if its owners end.
class shm_bucket final : public reduced_bucket {
 public:
  /// `slices[part][rank]` is the slice that a rank finishes of a part. Bounds are multiples of the page size, or the
  /// end of the bucket. If every rank has all of a part, each reads its own.
  using slice_table = std::vector<std::vector<byte_range>>;

  [[nodiscard]] static expected<std::unique_ptr<shm_bucket>>
  make(std::shared_ptr<shm_group> group, std::uint64_t size_bytes, std::vector<byte_range> parts, slice_table slices);
  ~shm_bucket() override;

  std::span<const std::byte> bytes() const noexcept override { return {view_, size_bytes_}; }
  std::span<const byte_range> parts() const noexcept override { return parts_; }
  [[nodiscard]] std::span<const byte_range> slices(std::size_t part) const noexcept { return slices_[part]; }

  /// Where this rank writes its slice of `part`.
  [[nodiscard]] std::byte* own_slice(std::size_t part) const noexcept;

  /// The offset of this rank's slices in its generation's file; the peers need it.
  [[nodiscard]] std::uint64_t own_offset() const noexcept { return own_offset_; }

  /// Maps the slices of `rank`, which start at `offset` of its file. Does nothing if they are mapped already.
  [[nodiscard]] expected<void> show(std::uint32_t rank, std::uint64_t offset);

 private:
  shm_bucket() = default;
  [[nodiscard]] std::uint64_t offset_in_slices(std::size_t part, std::uint32_t rank) const noexcept;

  std::shared_ptr<shm_group> group_;
  std::uint64_t size_bytes_ = 0;
  std::vector<byte_range> parts_;
  slice_table slices_;
  std::byte* view_ = nullptr;
  std::uint64_t view_bytes_ = 0;
  std::byte* own_ = nullptr;
  std::uint64_t own_offset_ = 0;
  /// By rank; `not_shown` until mapped.
  std::vector<std::uint64_t> shown_;
  static constexpr std::uint64_t not_shown = UINT64_MAX;
};

} // namespace troupe::collectives
