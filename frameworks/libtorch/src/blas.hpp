#pragma once

#include <span>
#include <string>
#include <string_view>

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

/// The widest arithmetic that a processor has, as far as OpenBLAS has kernels for it.
enum class vector_unit : unsigned char { other, avx2, avx512 };

/// What to tell the user of OpenBLAS's kernels, by the name of the processor that it took them for; empty where there
/// is nothing to say. A release knows the processors of its time, and takes later ones for the oldest.
[[nodiscard]] std::string warning_of_kernels(std::string_view core, vector_unit processor);

} // namespace troupe::libtorch
