#pragma once

#include <troupe/dtype.hpp>

#include <cstdint>

/// The kernels behind `device::reduce` and `device::widen`. Compiled as C++20 by g++ and as C++17 by nvcc, so it
/// includes no CUDA header. The functions return the `cudaError_t` of the launch alone.
namespace troupe::collectives::kernels {

enum class operation : std::uint8_t { add, min, max, multiply };

struct tree_pass {
  /// The bucket's type.
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

/// Launches on the current device. `stream` is a `cudaStream_t`.
[[nodiscard]] int launch(const tree_pass& what, void* stream) noexcept;
[[nodiscard]] int launch_widen(dtype type, void* out, const void* in, std::uint64_t elements, void* stream) noexcept;

} // namespace troupe::collectives::kernels
