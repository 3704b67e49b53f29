#include "worker/state/staging_memory.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace troupe::runtime {

namespace {

/// Has the kernel back all pages now: a page that is first touched while training waits costs more than its copy.
void prefault(std::span<std::byte> bytes) noexcept {
#ifdef MADV_POPULATE_WRITE
  if (::madvise(bytes.data(), bytes.size(), MADV_POPULATE_WRITE) == 0)
    return;
#endif
  auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  for (std::size_t i = 0; i < bytes.size(); i += page)
    *const_cast<volatile std::byte*>(&bytes[i]) = std::byte{0};
}

} // namespace

staging_memory::~staging_memory() {
  release();
}

void staging_memory::release() noexcept {
  prepared_.reset();
  from_.reset();
  if (!bytes_.empty())
    ::munmap(bytes_.data(), bytes_.size());
  bytes_ = {};
}

expected<void> staging_memory::reserve(std::size_t size_bytes, const std::shared_ptr<tensor_memory>& from) {
  if (size_bytes > bytes_.size())
    TROUPE_TRY(map(size_bytes));
  if (from != from_) {
    prepared_.reset();
    prepared_ = from ? from->prepare(bytes_) : nullptr;
    from_ = from;
  }
  return {};
}

expected<void> staging_memory::map(std::size_t size_bytes) {
  release();
  constexpr auto granule = std::size_t{2} << 20;
  auto rounded =
      size_bytes < granule ? (size_bytes + 4095) / 4096 * 4096 : (size_bytes + granule - 1) / granule * granule;
  auto* begin = ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (begin == MAP_FAILED)
    return fail(errc::unsatisfiable,
                fmt::format("no memory for a copy of {} bytes of the tracked state: {} (more workers hold smaller "
                            "shares)",
                            size_bytes, std::strerror(errno)));
  bytes_ = {static_cast<std::byte*>(begin), rounded};
  // A wish only.
  ::madvise(begin, rounded, MADV_HUGEPAGE);
  ::madvise(begin, rounded, MADV_DONTDUMP);
  prefault(bytes_);
  return {};
}

} // namespace troupe::runtime
