#pragma once

#include <string>

namespace troupe::collectives {

/// The software, beside the GPU itself, that determines the bits of kernels.
struct device_software {
  /// The newest CUDA version that the driver supports: "13.0". The driver compiles code for GPUs that the program was
  /// not compiled for.
  std::string driver;
  /// The CUDA Toolkit that compiled this program's kernels.
  std::string toolkit;

  bool operator==(const device_software&) const = default;
};

/// The versions of this process; empty where there is none.
[[nodiscard]] device_software find_device_software();

} // namespace troupe::collectives
