#pragma once

#include <troupe/collectives/bucket_layout.hpp>

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <span>

namespace troupe::collectives {

/// Bytes on a 64-byte boundary. Grows on demand, never shrinks; new memory is zeroed.
class aligned_buffer {
 public:
  /// Allocates from `memory`, which outlives the buffer.
  explicit aligned_buffer(std::pmr::memory_resource& memory = *std::pmr::new_delete_resource())
      : bytes_(nullptr, release{&memory, 0}) {}
  explicit aligned_buffer(std::size_t size_bytes, std::pmr::memory_resource& memory = *std::pmr::new_delete_resource())
      : aligned_buffer(memory) {
    reserve(size_bytes);
  }

  /// Makes the buffer at least this large. Growing discards the contents and zeroes the memory.
  void reserve(std::size_t wanted_bytes);

  [[nodiscard]] std::byte* data() const noexcept { return bytes_.get(); }
  [[nodiscard]] std::size_t size_bytes() const noexcept { return bytes_.get_deleter().size_bytes; }
  [[nodiscard]] std::span<std::byte> bytes() const noexcept { return {bytes_.get(), size_bytes()}; }

 private:
  struct release {
    std::pmr::memory_resource* memory;
    std::size_t size_bytes;
    void operator()(std::byte* p) const noexcept { memory->deallocate(p, size_bytes, alignment_bytes); }
  };
  std::unique_ptr<std::byte[], release> bytes_;
};

} // namespace troupe::collectives
