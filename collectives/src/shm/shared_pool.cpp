#include <troupe/collectives/shared_pool.hpp>

#include "shm/pages.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fmt/format.h>
#include <new>
#include <sys/mman.h>
#include <unistd.h>
#include <utility>

namespace troupe::collectives {

namespace {

std::uint64_t physical_memory() {
  return static_cast<std::uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

expected<void> failed(const char* what) {
  return fail(errc::io_error, fmt::format("cannot get memory to share with the workers of this host: {}: {}; set "
                                          "run.transport to tcp to run without shared memory",
                                          what, std::strerror(errno)));
}

} // namespace

expected<std::shared_ptr<shared_pool>> shared_pool::make(std::uint64_t capacity_bytes, peer_access peers) {
  const auto size = whole_pages(capacity_bytes == 0 ? physical_memory() : capacity_bytes);
  auto fd = unique_fd{::memfd_create("troupe-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
  if (!fd)
    return fail(failed("memfd_create").error());
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0)
    return fail(failed("ftruncate").error());
  auto* base = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd.get(), 0);
  if (base == MAP_FAILED)
    return fail(failed("mmap").error());
  auto result = std::shared_ptr<shared_pool>{new shared_pool{std::move(fd), static_cast<std::byte*>(base), size}};
  // From here on the file has a fixed size, so that no peer reads beyond its end, and can be mapped read-only.
  const auto writing = peers == peer_access::read_only ? F_SEAL_FUTURE_WRITE : 0;
  if (::fcntl(result->fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | writing | F_SEAL_SEAL) != 0)
    return fail(failed("sealing").error());
  ::madvise(base, size, MADV_DONTDUMP);
  return result;
}

shared_pool::shared_pool(unique_fd fd, std::byte* base, std::uint64_t capacity_bytes)
    : fd_(std::move(fd)), base_(base), capacity_bytes_(capacity_bytes) {}

shared_pool::~shared_pool() {
  ::munmap(base_, capacity_bytes_);
}

bool shared_pool::contains(const void* data, std::size_t size_bytes) const noexcept {
  const auto* at = static_cast<const std::byte*>(data);
  return std::greater_equal<>{}(at, base_) && std::less_equal<>{}(at + size_bytes, base_ + capacity_bytes_);
}

std::uint64_t shared_pool::offset_of(const void* data) const noexcept {
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(data) - base_);
}

void* shared_pool::do_allocate(std::size_t size_bytes, std::size_t alignment) {
  const auto size = whole_pages(std::max<std::size_t>(size_bytes, 1));
  if (alignment > page_bytes || size < size_bytes)
    throw std::bad_alloc{};
  const std::lock_guard lock{mutex_};
  const auto found = std::ranges::find_if(free_, [size](const auto& x) { return x.second >= size; });
  if (found != free_.end()) {
    const auto [offset, room] = *found;
    free_.erase(found);
    if (room > size)
      free_.emplace(offset + size, room - size);
    return base_ + offset;
  }
  if (size > capacity_bytes_ - end_)
    throw std::bad_alloc{};
  // Allocated now, because a page fault without memory would kill the process.
  if (::fallocate(fd_.get(), 0, static_cast<off_t>(end_), static_cast<off_t>(size)) != 0)
    throw std::bad_alloc{};
  auto* block = base_ + end_;
  end_ += size;
  ::madvise(block, size, MADV_POPULATE_WRITE);
  return block;
}

void shared_pool::do_deallocate(void* data, std::size_t size_bytes, std::size_t) {
  const std::lock_guard lock{mutex_};
  auto offset = offset_of(data);
  auto size = whole_pages(std::max<std::size_t>(size_bytes, 1));
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && offset + size == next->first) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin())
    if (auto before = std::prev(next); before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      free_.erase(before);
    }
  if (offset + size == end_)
    end_ = offset;
  else
    free_.emplace(offset, size);
}

} // namespace troupe::collectives
