#pragma once

#include "shm/group.hpp"

#include <troupe/collectives/communicator.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace troupe::collectives {

/// A bucket whose slices lie where they were finished: in the memory of the ranks that did so. It looks like one piece,
/// because the slices are mapped side by side; nothing is copied. The mappings keep the memory, whatever becomes of its
/// owners.
class shm_bucket final : public reduced_bucket {
 public:
  /// `slices[part][rank]` is what a rank finishes of a part; bounds are multiples of the page size, or the bucket's
  /// end. Where each rank has all of a part, it looks at its own.
  using slice_table = std::vector<std::vector<byte_range>>;

  [[nodiscard]] static expected<std::unique_ptr<shm_bucket>>
  make(std::shared_ptr<shm_group> group, std::uint64_t size_bytes, std::vector<byte_range> parts, slice_table slices);
  ~shm_bucket() override;

  std::span<const std::byte> bytes() const noexcept override { return {view_, size_bytes_}; }
  std::span<const byte_range> parts() const noexcept override { return parts_; }
  [[nodiscard]] std::span<const byte_range> slices(std::size_t part) const noexcept { return slices_[part]; }

  /// Where this rank writes its slice of `part`.
  [[nodiscard]] std::byte* own_slice(std::size_t part) const noexcept;

  /// Where this rank's slices begin in its generation's file: what the peers need to know.
  [[nodiscard]] std::uint64_t own_offset() const noexcept { return own_offset_; }

  /// Shows the slices of `rank`, which begin at `offset` of its file. Does nothing if they are shown already.
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
  /// By rank; `not_shown` before.
  std::vector<std::uint64_t> shown_;
  static constexpr std::uint64_t not_shown = UINT64_MAX;
};

} // namespace troupe::collectives
