#pragma once

#include <troupe/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <sys/mman.h>
#include <utility>

namespace troupe::serialization {

/// Addresses for more bytes than there may be memory: what is not touched, or has been dropped, takes none. All zero at
/// first and once dropped.
class reserved_memory {
 public:
  [[nodiscard]] static expected<reserved_memory> make(std::uint64_t size_bytes) {
    // No mapping may be empty.
    auto size = std::max<std::size_t>(size_bytes, 1);
    auto* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      return fail(system_error("reserving addresses for " + std::to_string(size) + " bytes"));
    return reserved_memory{static_cast<std::byte*>(data), size};
  }

  reserved_memory(reserved_memory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_bytes_(other.size_bytes_) {}
  reserved_memory& operator=(reserved_memory&&) = delete;
  ~reserved_memory() {
    if (data_)
      ::munmap(data_, size_bytes_);
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

  /// Gives the memory back; begins on a page.
  void drop(std::byte* begin, std::uint64_t length_bytes) const noexcept {
    ::madvise(begin, length_bytes, MADV_DONTNEED);
  }

 private:
  reserved_memory(std::byte* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

  std::byte* data_;
  std::size_t size_bytes_;
};

} // namespace troupe::serialization
