#pragma once

#include <charlm/device_model.hpp>

#include <troupe/collectives/device.hpp>

#include <memory>

namespace charlm {

/// The mathematics on a GPU: products by cuBLAS, which is opened here, the rest by kernels, all on `stream`. Nothing
/// that may change bits from one run to the next: a workspace of its own, no atomics, no TF32. For the calling thread.
/// Fails with `errc::unsatisfiable` in a build without CUDA and where there is no cuBLAS, with `errc::device_error`
/// where it refuses.
[[nodiscard]] troupe::expected<std::unique_ptr<device_maths>>
open_gpu_maths(std::shared_ptr<troupe::collectives::device> where, troupe::collectives::stream_handle stream);

} // namespace charlm
