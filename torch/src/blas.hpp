#pragma once

#include <span>
#include <string>

namespace troupe::libtorch {

/// Which library does the matrix products, by the paths of what is loaded.
struct blas_library {
  /// "OpenBLAS", "MKL", "BLIS", "ATLAS", "reference BLAS"; "unknown" where nothing looks like one.
  std::string name = "unknown";
  std::string path;

  [[nodiscard]] bool is_slow() const { return name == "reference BLAS"; }
};

/// The paths have no symbolic links in them: `libblas.so.3` is an interface that one of several libraries stands
/// behind.
[[nodiscard]] blas_library find_blas(std::span<const std::string> loaded_paths);

/// What to tell the user about it; empty for a fast one.
[[nodiscard]] std::string warning_of(const blas_library& blas);

} // namespace troupe::libtorch
