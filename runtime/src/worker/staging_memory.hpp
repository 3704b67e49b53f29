#pragma once

#include <troupe/error.hpp>

#include <troupe/tensor_memory.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace troupe::runtime {

/// Memory that copies are made into at memory speed: whole pages, all of them there before the first copy, and kept
/// from one to the next. Given back by the destructor.
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

  /// Makes room for at least `size_bytes`; the contents are lost if that is more than before. Fails with
  /// `errc::unsatisfiable` where there is not so much memory, and then has none.
  /// Copies out of `from`, if it is not null, are to be fast.
  [[nodiscard]] expected<void> reserve(std::size_t size_bytes, const std::shared_ptr<tensor_memory>& from = nullptr);

  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return bytes_; }

 private:
  [[nodiscard]] expected<void> map(std::size_t size_bytes);
  void release() noexcept;

  std::span<std::byte> bytes_;
  /// What `from_` has made of it.
  std::shared_ptr<const void> prepared_;
  std::shared_ptr<tensor_memory> from_;
};

} // namespace troupe::runtime
