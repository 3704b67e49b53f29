#pragma once

#include <charlm/device_model.hpp>

#include <troupe/collectives/device.hpp>

#include <map>
#include <memory>
#include <string>

namespace charlm {

/// The operations on a GPU, all on `stream`: matrix products by cuBLAS, which is loaded here, the rest by kernels. They
/// are deterministic: cuBLAS has a fixed workspace and uses neither atomics nor TF32. Use the result from the calling
/// thread. Fails with `errc::unsatisfiable` in a build without CUDA or without a cuBLAS library, and with
/// `errc::device_error` for an error of cuBLAS.
[[nodiscard]] troupe::expected<std::unique_ptr<device_maths>>
open_gpu_maths(std::shared_ptr<troupe::collectives::device> where, troupe::collectives::stream_handle stream);

/// The version of cuBLAS, on which the bits of matrix products depend besides the GPU. Loads cuBLAS; empty without it.
[[nodiscard]] std::map<std::string, std::string> gpu_maths_numerics();

} // namespace charlm
