#pragma once

#include <troupe/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fmt/format.h>
#include <sys/mman.h>
#include <utility>

namespace troupe::serialization {

/// A reserved range of addresses, which may exceed the memory: pages that are untouched or dropped take none. Untouched
/// and dropped pages read as zeros.
class reserved_memory {
 public:
  [[nodiscard]] static expected<reserved_memory> make(std::uint64_t size_bytes) {
    // An empty mapping is not allowed.
    auto size = std::max<std::size_t>(size_bytes, 1);
    auto* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED)
      return fail(system_error(fmt::format("reserving addresses for {} bytes", size)));
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

  /// Returns the range's memory to the system; `begin` must be page-aligned.
  void drop(std::byte* begin, std::uint64_t length_bytes) const noexcept {
    ::madvise(begin, length_bytes, MADV_DONTNEED);
  }

 private:
  reserved_memory(std::byte* data, std::size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}

  std::byte* data_;
  std::size_t size_bytes_;
};

} // namespace troupe::serialization
