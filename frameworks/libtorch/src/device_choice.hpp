#pragma once

#include <troupe/error.hpp>

#include <cstddef>

namespace troupe::libtorch {

enum class device_kind : unsigned char { cpu, gpu };

/// Uses a GPU only if the run assigned one to the worker. `usable` is the number that LibTorch sees. Fails with
/// `errc::unsatisfiable` if one was assigned and cannot be used.
[[nodiscard]] inline expected<device_kind> choose_device(bool given, std::size_t usable) {
  if (!given)
    return device_kind::cpu;
  if (usable == 0)
    return fail(
        errc::unsatisfiable,
        "this worker was assigned a GPU, and LibTorch finds none: install a LibTorch that is built with CUDA for this "
        "driver, or do not set scaling.use_gpu");
  return device_kind::gpu;
}

} // namespace troupe::libtorch
