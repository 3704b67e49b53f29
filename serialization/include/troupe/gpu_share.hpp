#pragma once

#include <cmath>

namespace troupe {

/// A hundred workers on one GPU are more than any use needs.
inline constexpr double least_gpu_share = 0.01;

/// Whether a worker may take this: no GPU, a share of one, or whole ones.
[[nodiscard]] inline bool is_gpu_number(double gpus) noexcept {
  return gpus == 0 || (gpus >= least_gpu_share && gpus < 1) || (gpus >= 1 && gpus <= 1024 && gpus == std::floor(gpus));
}

} // namespace troupe
