#pragma once

#include <troupe/error.hpp>

#include <troupe/tensor_memory.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace troupe::runtime {

/// Memory for copies at memory speed: whole pages, present before the first copy and kept between copies. Released by
/// the destructor.
class staging_memory {
 public:
  staging_memory() = default;
  staging_memory(staging_memory&& other) noexcept
      : bytes_(std::exchange(other.bytes_, {})), prepared_(std::move(other.prepared_)), from_(std::move(other.from_)) {}
  staging_memory& operator=(staging_memory&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    std::swap(prepared_, other.prepared_);
    std::swap(from_, other.from_);
    return *this;
  }
  ~staging_memory();

  /// Provides at least `size_bytes`; growing discards the contents. Fails with `errc::unsatisfiable` if memory is
  /// short, and then holds none. If `from` is not null, prepares the memory for fast copies from it.
  [[nodiscard]] expected<void> reserve(std::size_t size_bytes, const std::shared_ptr<tensor_memory>& from = nullptr);

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  [[nodiscard]] expected<void> map(std::size_t size_bytes);
  void release() noexcept;

  std::span<std::byte> bytes_;
  /// The registration of this memory with `from_`.
  std::shared_ptr<const void> prepared_;
  std::shared_ptr<tensor_memory> from_;
};

} // namespace troupe::runtime
