#pragma once

#include <troupe/error.hpp>

#include <cstddef>

namespace troupe::libtorch {

enum class device_kind : unsigned char { cpu, gpu };

/// A GPU is computed on if the run has given the worker one, and not because LibTorch sees one. `usable` counts
/// those that LibTorch sees. Fails with `errc::unsatisfiable` for one that was given and cannot be used.
[[nodiscard]] inline expected<device_kind> choose_device(bool given, std::size_t usable) {
  if (!given)
    return device_kind::cpu;
  if (usable == 0)
    return fail(
        errc::unsatisfiable,
        "this worker was given a GPU, and LibTorch finds none: take a LibTorch that is built with CUDA for this "
        "driver, or leave scaling.use_gpu out");
  return device_kind::gpu;
}

} // namespace troupe::libtorch
