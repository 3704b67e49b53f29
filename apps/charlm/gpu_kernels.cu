#include "gpu_kernels.hpp"

#include <cuda_runtime.h>

namespace charlm::kernels {

namespace {

constexpr unsigned threads_of_a_block = 256;
constexpr unsigned byte_values = 256;

template <class T>
struct as_declared {
  using type = T;
};

/// `kernel<<<blocks, threads, 0, stream>>>(arguments...)` in standard C++, because tests compile and run these kernels
/// on the host.
template <class... Parameters>
int start(void (*kernel)(Parameters...), unsigned blocks, unsigned threads, void* stream,
          typename as_declared<Parameters>::type... arguments) noexcept {
  void* all[] = {&arguments...};
  return cudaLaunchKernel(kernel, dim3{blocks}, dim3{threads}, all, 0, static_cast<cudaStream_t>(stream));
}

/// Calls `f(i)` for every i below `count`, each in its own thread.
template <class F>
__global__ void __launch_bounds__(threads_of_a_block) each(std::uint64_t count, F f) {
  const auto i = static_cast<std::uint64_t>(blockIdx.x) * threads_of_a_block + threadIdx.x;
  if (i < count)
    f(i);
}

template <class F>
int for_each(std::uint64_t count, void* stream, F f) noexcept {
  if (count == 0)
    return cudaSuccess;
  const auto blocks = (count + threads_of_a_block - 1) / threads_of_a_block;
  return start(each<F>, static_cast<unsigned>(blocks), threads_of_a_block, stream, count, f);
}

// Functors instead of lambdas, which would need an extra option of nvcc.

struct gather_step {
  sample_rows rows;
  const float* embedding;
  float* inputs;
  __device__ void operator()(std::uint64_t i) const { gather_element(rows, embedding, inputs, i); }
};

struct tanh_step {
  sample_rows rows;
  const float* bias;
  float* hidden;
  __device__ void operator()(std::uint64_t i) const { tanh_element(rows, bias, hidden, i); }
};

struct tanh_slope_step {
  const float* hidden;
  float* gradient;
  __device__ void operator()(std::uint64_t i) const { tanh_slope_element(hidden, gradient, i); }
};

template <class T>
struct column_chunk_step {
  const T* x;
  std::uint64_t samples;
  std::uint64_t columns;
  T* chunks;
  __device__ void operator()(std::uint64_t i) const { column_chunk_element(x, samples, columns, chunks, i); }
};

struct scatter_chunk_step {
  sample_rows rows;
  const float* inputs_gradient;
  float* chunks;
  __device__ void operator()(std::uint64_t i) const { scatter_chunk_element(rows, inputs_gradient, chunks, i); }
};

template <class T>
struct chunk_sum_step {
  const T* chunks;
  std::uint64_t count;
  std::uint64_t elements;
  T* sums;
  __device__ void operator()(std::uint64_t i) const { chunk_sum_element(chunks, count, elements, sums, i); }
};

struct adam_step {
  adam_factors by;
  float* parameters;
  float* m;
  float* v;
  const float* gradient;
  __device__ void operator()(std::uint64_t i) const { adam_element(by, parameters[i], m[i], v[i], gradient[i]); }
};

template <class T>
int sum_columns(const T* x, std::uint64_t samples, std::uint64_t columns, T* chunks, T* sums, void* stream) noexcept {
  const auto count = chunks_of(samples);
  const auto code = for_each(count * columns, stream, column_chunk_step<T>{x, samples, columns, chunks});
  return code != cudaSuccess ? code : for_each(columns, stream, chunk_sum_step<T>{chunks, count, columns, sums});
}

/// One block for each sample, one thread for each byte value.
__global__ void __launch_bounds__(byte_values)
    softmax_rows(sample_rows rows, const float* bias, float* logits, double* losses, bool with_gradient) {
  __shared__ float lanes[byte_values];
  __shared__ float target_logit;
  const auto sample = static_cast<std::uint64_t>(blockIdx.x);
  const auto lane = threadIdx.x;
  const auto target = rows.target(sample);
  auto& element = logits[sample * byte_values + lane];
  const auto logit = element + bias[lane];
  lanes[lane] = logit;
  if (lane == target)
    target_logit = logit;
  __syncthreads();
  for (auto half = byte_values / 2; half > 0; half /= 2) {
    if (lane < half)
      lanes[lane] = larger(lanes[lane], lanes[lane + half]);
    __syncthreads();
  }
  const auto greatest = lanes[0];
  __syncthreads();
  const auto power = exp_of_nonpositive(logit - greatest);
  lanes[lane] = power;
  __syncthreads();
  for (auto half = byte_values / 2; half > 0; half /= 2) {
    if (lane < half)
      lanes[lane] += lanes[lane + half];
    __syncthreads();
  }
  if (lane == 0)
    losses[sample] = cross_entropy_of(lanes[0], greatest, target_logit);
  if (with_gradient)
    element = logit_gradient(power, lanes[0], lane == target);
}

} // namespace

int gather(const sample_rows& rows, const float* embedding, float* inputs, void* stream) noexcept {
  return for_each(rows.samples * rows.inputs(), stream, gather_step{rows, embedding, inputs});
}

int add_bias_and_tanh(const sample_rows& rows, const float* bias, float* hidden, void* stream) noexcept {
  return for_each(rows.samples * rows.hidden, stream, tanh_step{rows, bias, hidden});
}

int softmax(const sample_rows& rows, const float* bias, float* logits, double* losses, bool with_gradient,
            void* stream) noexcept {
  if (rows.samples == 0)
    return cudaSuccess;
  return start(softmax_rows, static_cast<unsigned>(rows.samples), byte_values, stream, rows, bias, logits, losses,
               with_gradient);
}

int add_losses(const double* losses, std::uint64_t samples, double* chunks, double* sum, void* stream) noexcept {
  return sum_columns(losses, samples, 1, chunks, sum, stream);
}

int multiply_by_tanh_slope(const sample_rows& rows, const float* hidden, float* gradient, void* stream) noexcept {
  return for_each(rows.samples * rows.hidden, stream, tanh_slope_step{hidden, gradient});
}

int add_column_sums(const float* x, std::uint64_t samples, std::uint64_t columns, float* chunks, float* sums,
                    void* stream) noexcept {
  return sum_columns(x, samples, columns, chunks, sums, stream);
}

int scatter(const sample_rows& rows, const float* inputs_gradient, float* chunks, float* embedding_gradient,
            void* stream) noexcept {
  const auto count = chunks_of(rows.samples);
  const auto elements = byte_values * rows.embedding;
  const auto code = for_each(count * elements, stream, scatter_chunk_step{rows, inputs_gradient, chunks});
  return code != cudaSuccess
             ? code
             : for_each(elements, stream, chunk_sum_step<float>{chunks, count, elements, embedding_gradient});
}

int adam(const adam_factors& by, float* parameters, float* m, float* v, const float* gradient, std::uint64_t elements,
         void* stream) noexcept {
  return for_each(elements, stream, adam_step{by, parameters, m, v, gradient});
}

const char* describe(int error) noexcept {
  return cudaGetErrorString(static_cast<cudaError_t>(error));
}

} // namespace charlm::kernels
