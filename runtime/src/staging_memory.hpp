#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <span>
#include <utility>

namespace troupe::runtime {

/// Memory that copies are made into at memory speed: whole pages, all of them there before the first copy, and kept
/// from one to the next. Given back by the destructor.
class staging_memory {
 public:
  staging_memory() = default;
  staging_memory(staging_memory&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  staging_memory& operator=(staging_memory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~staging_memory();

  /// Makes room for at least `size_bytes`; the contents are lost if that is more than before. Fails with
  /// `errc::unsatisfiable` where there is not so much memory, and then has none.
  [[nodiscard]] expected<void> reserve(std::size_t size_bytes);

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  void release() noexcept;

  std::span<std::byte> bytes_;
};

} // namespace troupe::runtime
