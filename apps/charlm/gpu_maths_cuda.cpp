#include <charlm/gpu_maths.hpp>

#include "gpu_kernels.hpp"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <string>
#include <utility>

namespace charlm {

namespace {

using troupe::errc;
using troupe::exception;
using troupe::collectives::device;
using troupe::collectives::device_memory;
using troupe::collectives::stream_handle;

/// The size that cuBLAS recommends for the largest GPUs; larger than necessary is harmless.
constexpr std::uint64_t workspace_bytes = std::uint64_t{32} << 20;

/// cuBLAS, loaded on first use, so that programs that compute on the CPU do not need it. Never unloaded.
struct cublas_library {
  decltype(&cublasCreate_v2) create = nullptr;
  decltype(&cublasDestroy_v2) destroy = nullptr;
  decltype(&cublasSetStream_v2) set_stream = nullptr;
  decltype(&cublasSetWorkspace_v2) set_workspace = nullptr;
  decltype(&cublasSetMathMode) set_math_mode = nullptr;
  decltype(&cublasSetAtomicsMode) set_atomics_mode = nullptr;
  decltype(&cublasSgemm_v2) sgemm = nullptr;
  decltype(&cublasGetProperty) get_property = nullptr;
  /// Available since 11.4.2; null in older libraries.
  const char* (*status_name)(cublasStatus_t) = nullptr;
};

cublas_library open_cublas() {
  // The major version this was compiled for, because the types of others differ.
  const auto name = fmt::format("libcublas.so.{}", CUBLAS_VER_MAJOR);
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const auto* why = ::dlerror();
    throw exception{errc::unsatisfiable,
                    fmt::format("cannot load cuBLAS: {}; install cuBLAS {} (part of the CUDA Toolkit), or add its "
                                "directory to LD_LIBRARY_PATH",
                                why == nullptr ? name : why, CUBLAS_VER_MAJOR)};
  }
  cublas_library result;
  auto find = [&](auto& function, const char* symbol) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
    if (function == nullptr)
      throw exception{errc::unsatisfiable,
                      fmt::format("{} has no {}, so it is too old: install a newer one", name, symbol)};
  };
  find(result.create, "cublasCreate_v2");
  find(result.destroy, "cublasDestroy_v2");
  find(result.set_stream, "cublasSetStream_v2");
  find(result.set_workspace, "cublasSetWorkspace_v2");
  find(result.set_math_mode, "cublasSetMathMode");
  find(result.set_atomics_mode, "cublasSetAtomicsMode");
  find(result.sgemm, "cublasSgemm_v2");
  find(result.get_property, "cublasGetProperty");
  result.status_name = reinterpret_cast<const char* (*)(cublasStatus_t)>(::dlsym(library, "cublasGetStatusName"));
  return result;
}

class gpu_maths : public device_maths {
 public:
  gpu_maths(std::shared_ptr<device> where, stream_handle stream)
      : where_(std::move(where)),
        stream_(stream),
        workspace_(value_or_throw(device_memory::make(where_, workspace_bytes))),
        cublas_(open_cublas()) {
    value_or_throw(where_->make_current());
    check(cublas_.create(&handle_), "cublasCreate");
    try {
      check(cublas_.set_stream(handle_, static_cast<cudaStream_t>(stream_)), "cublasSetStream");
      // After setting the stream, which resets the workspace. With workspaces that cuBLAS chooses, its bits depend on
      // the activity of other streams.
      check(cublas_.set_workspace(handle_, workspace_.address(), workspace_bytes), "cublasSetWorkspace");
      check(cublas_.set_math_mode(handle_, CUBLAS_PEDANTIC_MATH), "cublasSetMathMode");
      check(cublas_.set_atomics_mode(handle_, CUBLAS_ATOMICS_NOT_ALLOWED), "cublasSetAtomicsMode");
    } catch (...) {
      cublas_.destroy(handle_);
      throw;
    }
  }

  gpu_maths(const gpu_maths&) = delete;
  gpu_maths& operator=(const gpu_maths&) = delete;
  ~gpu_maths() override {
    static_cast<void>(where_->synchronize_stream(stream_));
    cublas_.destroy(handle_);
  }

  void multiply(const matrix_product& x) override {
    const float one = 1.0F;
    const float zero = 0.0F;
    auto op = [](matrix_product::operand of) {
      return of == matrix_product::operand::as_is ? CUBLAS_OP_N : CUBLAS_OP_T;
    };
    const auto* beta = x.into == matrix_product::target::added_to ? &one : &zero;
    auto size = [](std::size_t n) { return static_cast<int>(n); };
    check(cublas_.sgemm(handle_, op(x.op_a), op(x.op_b), size(x.m), size(x.n), size(x.k), &one, x.a, size(x.lda), x.b,
                        size(x.ldb), beta, x.c, size(x.ldc)),
          "cublasSgemm");
  }

  void gather(const sample_rows& rows, const float* embedding, float* inputs) override {
    check(kernels::gather(rows, embedding, inputs, stream_), "gather");
  }
  void add_bias_and_tanh(const sample_rows& rows, const float* bias, float* hidden) override {
    check(kernels::add_bias_and_tanh(rows, bias, hidden, stream_), "add_bias_and_tanh");
  }
  void softmax(const sample_rows& rows, const float* bias, float* logits, double* losses, bool with_gradient) override {
    check(kernels::softmax(rows, bias, logits, losses, with_gradient, stream_), "softmax");
  }
  void add_losses(const double* losses, std::uint64_t samples, double* chunks, double* sum) override {
    check(kernels::add_losses(losses, samples, chunks, sum, stream_), "add_losses");
  }
  void multiply_by_tanh_slope(const sample_rows& rows, const float* hidden, float* gradient) override {
    check(kernels::multiply_by_tanh_slope(rows, hidden, gradient, stream_), "multiply_by_tanh_slope");
  }
  void add_column_sums(const float* x, std::uint64_t samples, std::uint64_t columns, float* chunks,
                       float* sums) override {
    check(kernels::add_column_sums(x, samples, columns, chunks, sums, stream_), "add_column_sums");
  }
  void scatter(const sample_rows& rows, const float* inputs_gradient, float* chunks,
               float* embedding_gradient) override {
    check(kernels::scatter(rows, inputs_gradient, chunks, embedding_gradient, stream_), "scatter");
  }
  void adam(const adam_factors& by, float* parameters, float* m, float* v, const float* gradient,
            std::uint64_t elements) override {
    check(kernels::adam(by, parameters, m, v, gradient, elements, stream_), "adam");
  }

 private:
  void check(cublasStatus_t status, const char* call) const {
    if (status == CUBLAS_STATUS_SUCCESS)
      return;
    auto text = fmt::format("{}: {} failed: {}", to_string(where_->info()), call,
                            cublas_.status_name != nullptr ? std::string{cublas_.status_name(status)}
                                                           : fmt::format("status {}", static_cast<int>(status)));
    // cuBLAS is often the first to notice a lost device, and does not report it as such.
    if (auto asked = where_->free_bytes(); !asked)
      text.append("; ").append(asked.error().message);
    throw exception{errc::device_error, std::move(text)};
  }

  void check(int launched, const char* kernel) const {
    if (launched != 0)
      throw exception{errc::device_error, fmt::format("{}: cannot launch the kernel {}: {}", to_string(where_->info()),
                                                      kernel, kernels::describe(launched))};
  }

  std::shared_ptr<device> where_;
  stream_handle stream_;
  device_memory workspace_;
  cublas_library cublas_;
  cublasHandle_t handle_ = nullptr;
};

} // namespace

troupe::expected<std::unique_ptr<device_maths>> open_gpu_maths(std::shared_ptr<device> where, stream_handle stream) {
  try {
    return std::make_unique<gpu_maths>(std::move(where), stream);
  } catch (const exception& x) {
    return troupe::fail(x.reason());
  }
}

std::map<std::string, std::string> gpu_maths_numerics() {
  try {
    const auto cublas = open_cublas();
    std::string version;
    for (const auto part : {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL}) {
      int number = 0;
      if (cublas.get_property(part, &number) != CUBLAS_STATUS_SUCCESS)
        return {};
      if (!version.empty())
        version += '.';
      version += std::to_string(number);
    }
    return {{"cublas", version}};
  } catch (const exception&) {
    // The error is reported when cuBLAS is used.
    return {};
  }
}

} // namespace charlm
