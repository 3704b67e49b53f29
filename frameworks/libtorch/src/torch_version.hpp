#pragma once

#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/version.h>

#include <utility>

/// What differs between LibTorch 1.13 and 2.
namespace troupe::libtorch {

/// What holds a node of autograd.
using accumulator_pointer = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

// Autocast of this thread. LibTorch 2.4 gave the functions one name for all devices, and 1.13 has one for each.

#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)

[[nodiscard]] inline bool is_autocast_enabled(bool on_gpu) {
  return at::autocast::is_autocast_enabled(on_gpu ? at::kCUDA : at::kCPU);
}

[[nodiscard]] inline at::ScalarType autocast_type(bool on_gpu) {
  return at::autocast::get_autocast_dtype(on_gpu ? at::kCUDA : at::kCPU);
}

inline void set_autocast(bool on_gpu, bool enabled, at::ScalarType type) {
  const auto device = on_gpu ? at::kCUDA : at::kCPU;
  at::autocast::set_autocast_enabled(device, enabled);
  at::autocast::set_autocast_dtype(device, type);
}

#else

[[nodiscard]] inline bool is_autocast_enabled(bool on_gpu) {
  return on_gpu ? at::autocast::is_enabled() : at::autocast::is_cpu_enabled();
}

[[nodiscard]] inline at::ScalarType autocast_type(bool on_gpu) {
  return on_gpu ? at::autocast::get_autocast_gpu_dtype() : at::autocast::get_autocast_cpu_dtype();
}

inline void set_autocast(bool on_gpu, bool enabled, at::ScalarType type) {
  if (on_gpu) {
    at::autocast::set_enabled(enabled);
    at::autocast::set_autocast_gpu_dtype(type);
  } else {
    at::autocast::set_cpu_enabled(enabled);
    at::autocast::set_autocast_cpu_dtype(type);
  }
}

#endif

} // namespace troupe::libtorch
