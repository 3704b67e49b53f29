#pragma once

#include <string>

namespace troupe::collectives {

/// What the bits of kernels depend on, beside the GPU.
struct device_software {
  /// The newest CUDA that the driver knows: "13.0". Code that is not compiled for a GPU's model, the driver compiles.
  std::string driver;
  /// The CUDA Toolkit that this program's kernels were compiled with.
  std::string toolkit;

  bool operator==(const device_software&) const = default;
};

/// Of this process; empty where there is none.
[[nodiscard]] device_software find_device_software();

} // namespace troupe::collectives
