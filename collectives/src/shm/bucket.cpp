#include "shm/bucket.hpp"
#include "shm/pages.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <new>
#include <sys/mman.h>
#include <utility>

namespace troupe::collectives {

expected<std::unique_ptr<shm_bucket>> shm_bucket::make(std::shared_ptr<shm_group> group, std::uint64_t size_bytes,
                                                       std::vector<byte_range> parts, slice_table slices) {
  auto result = std::unique_ptr<shm_bucket>{new shm_bucket};
  result->group_ = std::move(group);
  result->size_bytes_ = size_bytes;
  result->parts_ = std::move(parts);
  result->slices_ = std::move(slices);
  result->shown_.assign(result->group_->size(), not_shown);
  result->view_bytes_ = whole_pages(std::max<std::uint64_t>(size_bytes, 1));
  auto* view = ::mmap(nullptr, result->view_bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (view == MAP_FAILED)
    return fail(system_error("memory for the result of a reduction"));
  result->view_ = static_cast<std::byte*>(view);
  const auto rank = result->group_->rank();
  const auto own_bytes = result->offset_in_slices(result->parts_.size(), rank);
  try {
    // Never returned to the pool: a peer may still read it when this rank is done. It is freed with the generation.
    auto* own = result->group_->members().generation_pool().allocate(std::max<std::uint64_t>(own_bytes, 1), page_bytes);
    result->own_ = static_cast<std::byte*>(own);
  } catch (const std::bad_alloc&) {
    return fail(errc::io_error,
                fmt::format("there is no memory left for the result of a reduction of {} bytes", size_bytes));
  }
  result->own_offset_ = result->group_->members().generation_pool().offset_of(result->own_);
  TROUPE_TRY(result->show(rank, result->own_offset_));
  return result;
}

shm_bucket::~shm_bucket() {
  if (view_ != nullptr)
    ::munmap(view_, view_bytes_);
}

std::uint64_t shm_bucket::offset_in_slices(std::size_t part, std::uint32_t rank) const noexcept {
  std::uint64_t result = 0;
  for (std::size_t i = 0; i < part; ++i)
    result += whole_pages(slices_[i][rank].size_bytes());
  return result;
}

std::byte* shm_bucket::own_slice(std::size_t part) const noexcept {
  return own_ + offset_in_slices(part, group_->rank());
}

expected<void> shm_bucket::show(std::uint32_t rank, std::uint64_t offset) {
  if (shown_[rank] == offset)
    return {};
  for (std::size_t part = 0; part < parts_.size(); ++part) {
    const auto slice = slices_[part][rank];
    const auto is_hidden = rank != group_->rank() && slice == slices_[part][group_->rank()];
    if (slice.size_bytes() == 0 || is_hidden)
      continue;
    const auto at = static_cast<off_t>(offset + offset_in_slices(part, rank));
    const auto map = [&](int access) {
      return ::mmap(view_ + slice.first, whole_pages(slice.size_bytes()), access, MAP_SHARED | MAP_FIXED,
                    group_->members().generation_fd(rank), at) != MAP_FAILED;
    };
    // Not written here, but most drivers pin only writable memory.
    const auto is_shown = (group_->has_results_for_devices() && map(PROT_READ | PROT_WRITE)) || map(PROT_READ);
    if (!is_shown)
      return fail(system_error(fmt::format("mapping the result of rank {}", rank)));
  }
  shown_[rank] = offset;
  return {};
}

} // namespace troupe::collectives
