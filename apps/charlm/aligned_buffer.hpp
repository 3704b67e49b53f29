#pragma once

#include <cstddef>
#include <new>
#include <vector>

namespace charlm {

/// The alignment of every tensor and every workspace. It is fixed so that results do not depend on addresses.
inline constexpr std::size_t alignment_bytes = 64;

/// The number of floats in `alignment_bytes`. Sizes of tensors and blocks are multiples of it.
inline constexpr std::size_t aligned_floats = alignment_bytes / sizeof(float);

/// Allocates memory aligned to `alignment_bytes`.
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

/// Floats aligned to `alignment_bytes`.
using aligned_buffer = std::vector<float, aligned_allocator<float>>;

} // namespace charlm
