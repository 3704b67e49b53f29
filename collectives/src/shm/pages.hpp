#pragma once

#include <cstdint>

namespace troupe::collectives {

/// Shared memory is given out and mapped in units of this size.
inline constexpr std::uint64_t page_bytes = 4096;

/// The size of the pages that hold so many bytes.
[[nodiscard]] constexpr std::uint64_t whole_pages(std::uint64_t size_bytes) noexcept {
  return (size_bytes + page_bytes - 1) / page_bytes * page_bytes;
}

} // namespace troupe::collectives
