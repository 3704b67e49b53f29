#include "blas.hpp"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <string_view>
#include <utility>

namespace troupe::libtorch {

namespace {

using name_parts = std::pair<std::string_view, std::string_view>;

constexpr std::array<name_parts, 6> known{{{"openblas", "OpenBLAS"},
                                           {"libmkl", "MKL"},
                                           {"blis", "BLIS"},
                                           {"atlas", "ATLAS"},
                                           {"nvpl", "NVPL"},
                                           {"flexiblas", "FlexiBLAS"}}};

/// Recognised by file and directory, since Debian keeps each library's interface in a directory of its own.
std::string_view library_at(std::string_view path) {
  for (auto [part, name] : known)
    if (path.find(part) != std::string_view::npos)
      return name;
  return {};
}

} // namespace

blas_library find_blas(std::span<const std::string> loaded_paths) {
  for (const auto& path : loaded_paths) {
    // Other libraries may be loaded for LAPACK; this one computes the products.
    if (!std::string_view{path}.substr(path.rfind('/') + 1).starts_with("libblas.so"))
      continue;
    auto name = library_at(path);
    return {std::string{name.empty() ? "reference BLAS" : name}, path};
  }
  for (const auto& path : loaded_paths)
    if (auto name = library_at(std::string_view{path}.substr(path.rfind('/') + 1)); !name.empty())
      return {std::string{name}, path};
  return {};
}

std::string warning_of_kernels(std::string_view core, vector_unit processor) {
  constexpr std::array<std::string_view, 11> without_avx{"Katmai",  "Coppermine", "Northwood", "Prescott",
                                                         "Banias",  "Core2",      "Penryn",    "Dunnington",
                                                         "Nehalem", "Atom",       "Athlon"};
  if (processor == vector_unit::other || std::ranges::find(without_avx, core) == without_avx.end())
    return {};
  return fmt::format(
      "libtorch: OpenBLAS does not know this processor, and multiplies matrices as on a {}: two to three "
      "times slower than with OPENBLAS_CORETYPE={} in the environment. It changes the last bits: set it "
      "on all hosts of a run, and for all of its life",
      core, processor == vector_unit::avx512 ? "SkylakeX" : "Haswell");
}

std::string warning_of(const blas_library& blas) {
  if (!blas.is_slow())
    return {};
  return fmt::format("libtorch: matrix products use the reference BLAS ({}), about ten times slower than OpenBLAS; on "
                     "Debian: apt-get install libopenblas0-pthread",
                     blas.path);
}

} // namespace troupe::libtorch
