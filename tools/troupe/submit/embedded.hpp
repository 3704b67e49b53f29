#pragma once

#include <string_view>

/// Files that are part of the program.
namespace troupe::tool {

/// tools/deploy/slurm.sbatch
[[nodiscard]] std::string_view embedded_slurm_sbatch();

/// kubernetes.yaml, whose words between @ are replaced.
[[nodiscard]] std::string_view embedded_kubernetes_yaml();

} // namespace troupe::tool
