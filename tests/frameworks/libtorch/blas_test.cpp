#include "blas.hpp"
#include "device_choice.hpp"

#include <doctest/doctest.h>

#include <string>
#include <utility>
#include <vector>

using namespace troupe::libtorch;

TEST_CASE("the library behind the BLAS interface is recognised by the loaded files") {
  using paths = std::vector<std::string>;
  const std::vector<std::pair<paths, std::string>> cases{
      {{"/usr/bin/train", "/lib/x86_64-linux-gnu/libblas.so.3"}, "reference BLAS"},
      {{"/usr/lib/x86_64-linux-gnu/blas/libblas.so.3"}, "reference BLAS"},
      // A library that is loaded for LAPACK only does not compute products.
      {{"/usr/lib/x86_64-linux-gnu/blas/libblas.so.3", "/usr/lib/x86_64-linux-gnu/openblas-pthread/liblapack.so.3"},
       "reference BLAS"},
      {{"/usr/lib/x86_64-linux-gnu/openblas-pthread/liblapack.so.3",
        "/usr/lib/x86_64-linux-gnu/openblas-pthread/libblas.so.3"},
       "OpenBLAS"},
      {{"/opt/conda/lib/libopenblasp-r0.3.21.so"}, "OpenBLAS"},
      {{"/usr/lib/x86_64-linux-gnu/openblas-serial/libblas.so.3"}, "OpenBLAS"},
      {{"/usr/lib/x86_64-linux-gnu/atlas/libblas.so.3"}, "ATLAS"},
      {{"/usr/lib/x86_64-linux-gnu/blis-pthread/libblas.so.3"}, "BLIS"},
      {{"/opt/libtorch/lib/libtorch_cpu.so", "/opt/intel/lib/libmkl_rt.so.2"}, "MKL"},
      {{"/usr/bin/train", "/lib/x86_64-linux-gnu/libm.so.6"}, "unknown"},
      {{}, "unknown"}};
  for (const auto& [loaded, name] : cases) {
    CAPTURE(name);
    auto blas = find_blas(loaded);
    CHECK(blas.name == name);
    CHECK(blas.is_slow() == (name == "reference BLAS"));
    CHECK(warning_of(blas).empty() == !blas.is_slow());
  }
  auto text = warning_of(find_blas(cases.front().first));
  CHECK(text.find("/lib/x86_64-linux-gnu/libblas.so.3") != std::string::npos);
  CHECK(text.find("apt-get install libopenblas0-pthread") != std::string::npos);
}

TEST_CASE("a GPU is used if the run assigns one, not because it exists") {
  CHECK(choose_device(false, 4) == device_kind::cpu);
  CHECK(choose_device(true, 1) == device_kind::gpu);
  auto none = choose_device(true, 0);
  REQUIRE_FALSE(none);
  CHECK(none.error().code == troupe::errc::unsatisfiable);
}

TEST_CASE("OpenBLAS is reported as slow if it takes a newer processor for one without AVX") {
  CHECK(warning_of_kernels("Prescott", vector_unit::avx512).find("OPENBLAS_CORETYPE=SkylakeX") != std::string::npos);
  CHECK(warning_of_kernels("Nehalem", vector_unit::avx2).find("OPENBLAS_CORETYPE=Haswell") != std::string::npos);
  CHECK(warning_of_kernels("Nehalem", vector_unit::other).empty());
  CHECK(warning_of_kernels("Haswell", vector_unit::avx512).empty());
  CHECK(warning_of_kernels("Zen", vector_unit::avx2).empty());
  CHECK(warning_of_kernels("", vector_unit::avx2).empty());
}
