#include "blas.hpp"

#include <troupe/libtorch.hpp>

#include <troupe/runtime/program.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <torch/csrc/jit/python/update_graph_executor_opt.h>
#include <torch/utils.h>
#include <torch/version.h>

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <fmt/format.h>
#include <malloc.h>
#include <sstream>
#include <string>
#include <system_error>

namespace troupe::libtorch {

namespace {

blas_library loaded_blas() {
  std::vector<std::string> paths;
  for (const auto& object : runtime::loaded_objects()) {
    auto code = std::error_code{};
    auto path = std::filesystem::canonical(object.name, code);
    paths.push_back(code ? object.name : path.string());
  }
  return find_blas(paths);
}

/// The processor for which OpenBLAS has chosen its kernels; empty if OpenBLAS is not loaded.
std::string openblas_core(const blas_library& blas) {
  auto* handle = blas.path.empty() ? nullptr : ::dlopen(blas.path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr)
    return {};
  std::string result;
  if (auto* symbol = ::dlsym(handle, "openblas_get_corename"); symbol != nullptr)
    result = reinterpret_cast<const char* (*)()>(symbol)();
  ::dlclose(handle);
  return result;
}

vector_unit own_vector_unit() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0)
    return vector_unit::avx512;
  if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0)
    return vector_unit::avx2;
#endif
  return vector_unit::other;
}

/// The warning about matrix products, if any.
std::string warning() {
  auto blas = loaded_blas();
  if (auto text = warning_of(blas); !text.empty())
    return text;
  // A user who sets it has made the choice.
  return std::getenv("OPENBLAS_CORETYPE") != nullptr ? "" : warning_of_kernels(openblas_core(blas), own_vector_unit());
}

/// The instruction set of LibTorch's kernels, such as "AVX2". The environment can override the processor's.
std::string kernels() {
  constexpr std::string_view mark = "CPU capability usage: ";
  auto text = at::show_config();
  auto found = text.find(mark);
  if (found == std::string::npos)
    return "unknown";
  found += mark.size();
  return text.substr(found, text.find('\n', found) - found);
}

/// The versions of CUDA and cuDNN in LibTorch's configuration; empty without them.
std::string gpu_libraries() {
  auto text = std::istringstream{at::show_config()};
  std::string result;
  for (std::string line; std::getline(text, line);)
    for (const auto* mark : {"CUDA Runtime", "CuDNN", "Magma"})
      if (auto found = line.find(mark); found != std::string::npos)
        result += fmt::format("{}{}", result.empty() ? "" : ", ", line.substr(found));
  return result;
}

/// Makes the C library keep freed memory. By default it returns the activations' memory to the system in each step, so
/// that the next step faults in every page again.
void keep_freed_memory() {
  constexpr auto mib = 1 << 20;
  // The maximum: larger blocks are always mapped and unmapped.
  ::mallopt(M_MMAP_THRESHOLD, 32 * mib);
  ::mallopt(M_TRIM_THRESHOLD, 1024 * mib);
  // Threads other than the first allocate from heaps of 64 MiB, which are unmapped unless this much is kept.
  ::mallopt(M_TOP_PAD, 64 * mib);
}

class torch_framework : public framework {
 public:
  explicit torch_framework(framework_options options) : options_(options) {
    if (options_.threads < 1)
      throw exception{errc::invalid_argument,
                      fmt::format("framework_options.threads is {}: a worker needs at least 1", options_.threads)};
  }

  std::string name() const override { return "libtorch"; }

  void on_start() override {
    keep_freed_memory();
    // cuBLAS reads it at its start; without it, it rejects deterministic algorithms.
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
    at::set_num_threads(options_.threads);
    // LibTorch accepts this once per process, and a program may have several of these objects.
    static const bool once = (at::set_num_interop_threads(1), true);
    static_cast<void>(once);
  }

  std::map<std::string, std::string> numerics() const override {
    std::map<std::string, std::string> result;
    result["version"] = TORCH_VERSION;
    result["threads"] = fmt::to_string(at::get_num_threads());
    result["kernels"] = kernels();
    result["onednn"] = at::hasMKLDNN() ? "yes" : "no";
    result["blas"] = loaded_blas().name;
    // LibTorch's own packages contain it, Debian's does not.
    if (at::hasMKL())
      result["blas"] = "MKL";
    return result;
  }

  std::map<std::string, std::string> gpu_numerics() const override {
    std::map<std::string, std::string> result;
    if (auto libraries = gpu_libraries(); !libraries.empty())
      result["libraries"] = libraries;
    return result;
  }

  void on_training_start(train_context& ctx) override {
    // Kernels may use the number of threads that is set for the calling thread.
    at::set_num_threads(options_.threads);
    auto& context = at::globalContext();
    context.setDeterministicAlgorithms(true, false);
    context.setDeterministicCuDNN(true);
    context.setBenchmarkCuDNN(false);
    // TorchScript optimizes after some runs, and then rounds differently: old and new workers would differ.
    torch::jit::setGraphExecutorOptimize(false);
    auto random = ctx.random("libtorch");
    auto high = std::uint64_t{random()};
    torch::manual_seed(high << 32 | random());
    if (auto text = warning(); !text.empty() && ctx.local_rank() == 0)
      std::fprintf(stderr, "%s\n", text.c_str());
  }

 private:
  framework_options options_;
};

} // namespace

std::shared_ptr<framework> make_framework(framework_options options) {
  return std::make_shared<torch_framework>(options);
}

} // namespace troupe::libtorch
