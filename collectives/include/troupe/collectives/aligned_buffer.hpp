#pragma once

#include <troupe/collectives/bucket_layout.hpp>

#include <cstddef>
#include <memory>
#include <new>
#include <span>

namespace troupe::collectives {

/// Bytes on a 64-byte boundary. Grows on demand, never shrinks, and starts as zeros.
class aligned_buffer {
 public:
  aligned_buffer() = default;
  explicit aligned_buffer(std::size_t size_bytes) { reserve(size_bytes); }

  /// Makes room for at least `size_bytes`. Growing loses the contents and gives zeros.
  void reserve(std::size_t size_bytes);

  [[nodiscard]] std::byte* data() const noexcept { return bytes_.get(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {bytes_.get(), size_bytes_}; }

 private:
  struct release {
    void operator()(std::byte* p) const noexcept { ::operator delete[](p, std::align_val_t{alignment_bytes}); }
  };
  std::unique_ptr<std::byte[], release> bytes_;
  std::size_t size_bytes_ = 0;
};

} // namespace troupe::collectives
