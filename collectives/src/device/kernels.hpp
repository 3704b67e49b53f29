#pragma once

#include <troupe/dtype.hpp>

#include <cstddef>
#include <cstdint>

/// The kernels behind `device::reduce` and `device::widen`. Read by g++ as C++20 and by nvcc as C++17, and free of
/// CUDA's own headers. What is returned is a `cudaError_t`, of the launch alone.
namespace troupe::collectives::kernels {

enum class operation : std::uint8_t { add, min, max, multiply };

struct tree_pass {
  /// Of the bucket.
  dtype type;
  operation op;
  /// 1, 2, 4 or 8.
  std::uint32_t count;
  const void* operands[8];
  void* out;
  std::uint64_t elements;
  bool is_final;
  std::uint64_t divisor;
};

/// On the current device. `stream` is a `cudaStream_t`.
[[nodiscard]] int launch(const tree_pass& what, void* stream) noexcept;
[[nodiscard]] int launch_widen(dtype type, void* out, const void* in, std::uint64_t elements, void* stream) noexcept;

} // namespace troupe::collectives::kernels
