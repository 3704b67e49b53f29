#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace charlm {

/// Where every tensor and every workspace starts: what the maths computes must not depend on an address.
inline constexpr std::size_t alignment_bytes = 64;

/// The floats that fill `alignment_bytes`; the sizes of tensors and blocks are multiples of it.
inline constexpr std::size_t aligned_floats = alignment_bytes / sizeof(float);

/// An allocator for a `std::vector` that starts on a boundary of `alignment_bytes`.
template <class T>
struct aligned_allocator {
  using value_type = T;

  aligned_allocator() = default;

  template <class U>
  aligned_allocator(const aligned_allocator<U>&) noexcept {}

  [[nodiscard]] T* allocate(std::size_t n) {
    return static_cast<T*>(::operator new (n * sizeof(T), std::align_val_t{alignment_bytes}));
  }

  void deallocate(T* p, std::size_t) noexcept { ::operator delete (p, std::align_val_t{alignment_bytes}); }

  bool operator==(const aligned_allocator&) const = default;
};

/// Floats that start on a boundary of `alignment_bytes`.
using aligned_buffer = std::vector<float, aligned_allocator<float>>;

} // namespace charlm
