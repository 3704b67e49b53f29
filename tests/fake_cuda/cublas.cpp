#include <cublas_v2.h>

#include <Eigen/Core>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <unistd.h>

// See README.md.

struct cublasContext {
  cudaStream_t stream = nullptr;
  bool has_workspace = false;
  bool is_pedantic = false;
  bool has_atomics = true;
};

namespace {

using matrix = Eigen::Map<Eigen::MatrixXf, Eigen::Unaligned, Eigen::OuterStride<>>;
using const_matrix = Eigen::Map<const Eigen::MatrixXf, Eigen::Unaligned, Eigen::OuterStride<>>;

struct product {
  cublasOperation_t op_a;
  cublasOperation_t op_b;
  int m;
  int n;
  int k;
  float alpha;
  const float* a;
  int lda;
  const float* b;
  int ldb;
  float beta;
  float* c;
  int ldc;
};

const_matrix operand(cublasOperation_t op, const float* data, int rows, int columns, int stride) {
  return op == CUBLAS_OP_N ? const_matrix{data, rows, columns, Eigen::OuterStride<>{stride}}
                           : const_matrix{data, columns, rows, Eigen::OuterStride<>{stride}};
}

/// Whether each process computes slightly different sums, like a library without a fixed order.
bool is_noisy() {
  const auto* value = std::getenv("TROUPE_FAKE_CUBLAS_NOISE");
  return value != nullptr && std::strcmp(value, "1") == 0;
}

void compute(const product& x) {
  const auto a = operand(x.op_a, x.a, x.m, x.k, x.lda);
  const auto b = operand(x.op_b, x.b, x.k, x.n, x.ldb);
  matrix c{x.c, x.m, x.n, Eigen::OuterStride<>{x.ldc}};
  Eigen::MatrixXf result(x.m, x.n);
  if (x.op_a == CUBLAS_OP_N && x.op_b == CUBLAS_OP_N)
    result.noalias() = a * b;
  else if (x.op_a == CUBLAS_OP_N)
    result.noalias() = a * b.transpose();
  else if (x.op_b == CUBLAS_OP_N)
    result.noalias() = a.transpose() * b;
  else
    result.noalias() = a.transpose() * b.transpose();
  if (static const auto noisy = is_noisy(); noisy)
    result *= 1.0F + static_cast<float>(::getpid() % 1000) * 1e-6F;
  // With beta 0 the old content is not read and may be anything.
  if (x.beta == 0.0F)
    c = x.alpha * result;
  else
    c = x.alpha * result + x.beta * c;
}

} // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  // Like cuBLAS, setting the stream resets the workspace.
  handle->has_workspace = false;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void* workspace, std::size_t size_bytes) {
  handle->has_workspace = workspace != nullptr && size_bytes != 0;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode) {
  handle->is_pedantic = mode == CUBLAS_PEDANTIC_MATH;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode) {
  handle->has_atomics = mode == CUBLAS_ATOMICS_ALLOWED;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t op_a, cublasOperation_t op_b, int m, int n,
                              int k, const float* alpha, const float* a, int lda, const float* b, int ldb,
                              const float* beta, float* c, int ldc) {
  // Without these settings cuBLAS is not deterministic, so they are required here.
  if (handle->stream == nullptr || !handle->has_workspace || !handle->is_pedantic || handle->has_atomics)
    return CUBLAS_STATUS_NOT_INITIALIZED;
  if (m < 0 || n < 0 || k < 0 || lda < (op_a == CUBLAS_OP_N ? m : k) || ldb < (op_b == CUBLAS_OP_N ? k : n) || ldc < m)
    return CUBLAS_STATUS_INVALID_VALUE;
  auto work = std::make_unique<product>(product{op_a, op_b, m, n, k, *alpha, a, lda, b, ldb, *beta, c, ldc});
  const auto code = cudaLaunchHostFunc(
      handle->stream, [](void* argument) { compute(*std::unique_ptr<product>{static_cast<product*>(argument)}); },
      work.get());
  if (code != cudaSuccess)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  static_cast<void>(work.release());
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetProperty(libraryPropertyType, int* value) {
  *value = 0;
  return CUBLAS_STATUS_SUCCESS;
}

const char* cublasGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_INVALID_VALUE      ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == CUBLAS_STATUS_EXECUTION_FAILED ? "CUBLAS_STATUS_EXECUTION_FAILED"
                                                    : "CUBLAS_STATUS_NOT_INITIALIZED";
}

} // extern "C"
