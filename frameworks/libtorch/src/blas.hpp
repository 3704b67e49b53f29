#pragma once

#include <span>
#include <string>
#include <string_view>

namespace troupe::libtorch {

/// The library that computes matrix products, found by the paths of the loaded libraries.
struct blas_library {
  /// "OpenBLAS", "MKL", "BLIS", "ATLAS", "reference BLAS"; "unknown" if none is recognised.
  std::string name = "unknown";
  std::string path;

  [[nodiscard]] bool is_slow() const { return name == "reference BLAS"; }
};

/// Symbolic links in the paths must be resolved, because `libblas.so.3` links to one of several libraries.
[[nodiscard]] blas_library find_blas(std::span<const std::string> loaded_paths);

/// The warning for the user; empty for a fast library.
[[nodiscard]] std::string warning_of(const blas_library& blas);

/// The widest vector instructions of a processor, as far as OpenBLAS has kernels for them.
enum class vector_unit : unsigned char { other, avx2, avx512 };

/// The warning for the user about OpenBLAS's choice of kernels, given the processor it assumes; empty if the choice is
/// good. An OpenBLAS release takes processors that are newer than itself for the oldest.
[[nodiscard]] std::string warning_of_kernels(std::string_view core, vector_unit processor);

} // namespace troupe::libtorch
