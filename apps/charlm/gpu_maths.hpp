#pragma once

#include <charlm/device_model.hpp>

#include <troupe/collectives/device.hpp>

#include <map>
#include <memory>
#include <string>

namespace charlm {

/// The mathematics on a GPU: products by cuBLAS, which is opened here, the rest by kernels, all on `stream`. Nothing
/// that may change bits from one run to the next: a workspace of its own, no atomics, no TF32. For the calling thread.
/// Fails with `errc::unsatisfiable` in a build without CUDA and where there is no cuBLAS, with `errc::device_error`
/// where it refuses.
[[nodiscard]] troupe::expected<std::unique_ptr<device_maths>>
open_gpu_maths(std::shared_ptr<troupe::collectives::device> where, troupe::collectives::stream_handle stream);

/// What the bits of those products depend on, beside the GPU: the version of cuBLAS. Opens it; empty where there is
/// none.
[[nodiscard]] std::map<std::string, std::string> gpu_maths_numerics();

} // namespace charlm
