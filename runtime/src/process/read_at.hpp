#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::runtime {

/// Fills `bytes` from this offset of the file. False if the file ends before, or cannot be read.
[[nodiscard]] bool read_at(int fd, std::span<std::byte> bytes, std::uint64_t offset);

/// As `read_at`, for an object of a file format.
template <class T>
[[nodiscard]] bool read_object(int fd, T& x, std::uint64_t offset) {
  return read_at(fd, std::as_writable_bytes(std::span{&x, 1}), offset);
}

} // namespace troupe::runtime
