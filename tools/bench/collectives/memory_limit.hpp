#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace troupe::bench {

/// out[i] = the sum of element i of all slices: one pass, left to right, in a loop that the compiler vectorises.
/// Accepts 1, 2, 4 or 8 slices.
void sum_slices(float* out, std::span<const float* const> slices, std::uint64_t elements);

/// Bytes of another process's file, mapped for reading with all pages present.
class mapped_block {
 public:
  /// `offset` must be a multiple of the page size. Throws `troupe::exception`.
  mapped_block(int fd, std::uint64_t offset, std::uint64_t size_bytes);
  mapped_block(mapped_block&& other) noexcept;
  mapped_block& operator=(mapped_block&&) = delete;
  ~mapped_block();

  [[nodiscard]] const std::byte* data() const noexcept { return data_; }

 private:
  const std::byte* data_;
  std::uint64_t size_bytes_;
};

} // namespace troupe::bench
