#include "device/kernels.hpp"
#include "tree/element_arithmetic.hpp"

#include <cuda_runtime.h>

namespace troupe::collectives::kernels {

namespace {

using namespace arithmetic;

constexpr int threads_of_a_block = 256;
/// The elements that a thread handles at once fill one 16-byte access to each operand.
constexpr int access_bytes = 16;

template <class T, int Count>
struct alignas(sizeof(T) * Count) pack {
  T at[Count];
};

template <class T>
struct operand_list {
  const T* at[8];
};

/// Turns the sum of `N` operands into what is stored. Integers are divided by a kernel of their own: a 64-bit division
/// is long code that would be in every sum.
template <class Out, class T>
__device__ Out stored(T sum, bool divides, wrapping<T> divisor) {
  if constexpr (std::is_floating_point_v<T>)
    return finished<Out>(sum, divides, divisor);
  else
    return sum;
}

template <int N, class T, class Out, class F>
__global__ void __launch_bounds__(threads_of_a_block)
    combine(operand_list<T> x, Out* out, std::uint64_t elements, bool divides, wrapping<T> divisor) {
  constexpr int width = access_bytes / sizeof(T);
  using in_pack = pack<T, width>;
  using out_pack = pack<Out, width>;
  const auto stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  const auto first = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (auto i = first; i < elements / width; i += stride) {
    in_pack operands[N];
#pragma unroll
    for (int k = 0; k < N; ++k)
      operands[k] = reinterpret_cast<const in_pack*>(x.at[k])[i];
    out_pack result;
#pragma unroll
    for (int e = 0; e < width; ++e) {
      T values[N];
#pragma unroll
      for (int k = 0; k < N; ++k)
        values[k] = operands[k].at[e];
      result.at[e] = stored<Out>(combined<N>(values, F{}), divides, divisor);
    }
    reinterpret_cast<out_pack*>(out)[i] = result;
  }
  // The rest of a bucket that is not a multiple of an access.
  for (auto i = elements / width * width + first; i < elements; i += stride) {
    T values[N];
    for (int k = 0; k < N; ++k)
      values[k] = x.at[k][i];
    out[i] = stored<Out>(combined<N>(values, F{}), divides, divisor);
  }
}

template <class T>
__global__ void __launch_bounds__(threads_of_a_block) divide(T* data, std::uint64_t elements, std::uint64_t divisor) {
  const auto stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (auto i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < elements; i += stride)
    data[i] = quotient(data[i], divisor);
}

template <class From>
__global__ void __launch_bounds__(threads_of_a_block) widen(float* out, const From* in, std::uint64_t elements) {
  constexpr int width = access_bytes / sizeof(float);
  const auto stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  const auto first = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (auto i = first; i < elements / width; i += stride) {
    const auto from = reinterpret_cast<const pack<From, width>*>(in)[i];
    pack<float, width> result;
#pragma unroll
    for (int e = 0; e < width; ++e)
      result.at[e] = widened(from.at[e]);
    reinterpret_cast<pack<float, width>*>(out)[i] = result;
  }
  for (auto i = elements / width * width + first; i < elements; i += stride)
    out[i] = widened(in[i]);
}

unsigned blocks_for(std::uint64_t elements, std::size_t element_bytes) {
  const auto accesses = elements * element_bytes / access_bytes + 1;
  const auto blocks = (accesses + threads_of_a_block - 1) / threads_of_a_block;
  // Beyond this number each thread does several accesses: the device is long saturated.
  constexpr std::uint64_t most = 1u << 20;
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

template <class T>
struct as_declared {
  using type = T;
};

/// `kernel<<<blocks, threads_of_a_block, 0, stream>>>(arguments...)` in plain C++, so that tests can run these kernels
/// on the host.
template <class... Parameters>
cudaError_t start(void (*kernel)(Parameters...), unsigned blocks, cudaStream_t stream,
                  typename as_declared<Parameters>::type... arguments) {
  void* all[] = {&arguments...};
  return cudaLaunchKernel(kernel, dim3{blocks}, dim3{threads_of_a_block}, all, 0, stream);
}

template <int N, class T, class Out, class F>
cudaError_t launch_typed(const tree_pass& what, cudaStream_t stream) {
  operand_list<T> operands{};
  for (int k = 0; k < N; ++k)
    operands.at[k] = static_cast<const T*>(what.operands[k]);
  const auto divides = what.is_final && what.divisor != 1;
  const auto code = start(combine<N, T, Out, F>, blocks_for(what.elements, sizeof(T)), stream, operands,
                          static_cast<Out*>(what.out), what.elements, divides, static_cast<wrapping<T>>(what.divisor));
  if constexpr (std::is_integral_v<T>)
    if (code == cudaSuccess && divides)
      return start(divide<T>, blocks_for(what.elements, access_bytes), stream, static_cast<T*>(what.out), what.elements,
                   what.divisor);
  return code;
}

template <class T, class Out, class F>
cudaError_t launch_for_count(const tree_pass& what, cudaStream_t stream) {
  switch (what.count) {
  case 2:
    return launch_typed<2, T, Out, F>(what, stream);
  case 4:
    return launch_typed<4, T, Out, F>(what, stream);
  case 8:
    return launch_typed<8, T, Out, F>(what, stream);
  default:
    return cudaErrorInvalidValue;
  }
}

template <class T, class Out>
cudaError_t launch_for_operation(const tree_pass& what, cudaStream_t stream) {
  if (what.count == 1)
    return launch_typed<1, T, Out, add>(what, stream);
  switch (what.op) {
  case operation::add:
    return launch_for_count<T, Out, add>(what, stream);
  case operation::min:
    return launch_for_count<T, Out, lesser>(what, stream);
  case operation::max:
    return launch_for_count<T, Out, greater>(what, stream);
  case operation::multiply:
    return launch_for_count<T, Out, multiply>(what, stream);
  }
  return cudaErrorInvalidValue;
}

} // namespace

int launch(const tree_pass& what, void* stream) noexcept {
  if (what.elements == 0)
    return cudaSuccess;
  auto* on = static_cast<cudaStream_t>(stream);
  switch (what.type) {
  case dtype::f32:
    return launch_for_operation<float, float>(what, on);
  case dtype::f64:
    return launch_for_operation<double, double>(what, on);
  case dtype::f16:
    return what.is_final ? launch_for_operation<float, f16>(what, on) : launch_for_operation<float, float>(what, on);
  case dtype::bf16:
    return what.is_final ? launch_for_operation<float, bf16>(what, on) : launch_for_operation<float, float>(what, on);
  case dtype::i32:
    return launch_for_operation<std::int32_t, std::int32_t>(what, on);
  case dtype::i64:
    return launch_for_operation<std::int64_t, std::int64_t>(what, on);
  case dtype::u8:
    return launch_for_operation<std::uint8_t, std::uint8_t>(what, on);
  case dtype::i8:
  case dtype::i16:
  case dtype::u16:
  case dtype::u32:
  case dtype::u64:
  case dtype::boolean:
    break;
  }
  return cudaErrorInvalidValue;
}

int launch_widen(dtype type, void* out, const void* in, std::uint64_t elements, void* stream) noexcept {
  if (elements == 0)
    return cudaSuccess;
  auto* on = static_cast<cudaStream_t>(stream);
  const auto blocks = blocks_for(elements, sizeof(float));
  if (type == dtype::f16)
    return start(widen<f16>, blocks, on, static_cast<float*>(out), static_cast<const f16*>(in), elements);
  if (type == dtype::bf16)
    return start(widen<bf16>, blocks, on, static_cast<float*>(out), static_cast<const bf16*>(in), elements);
  return cudaErrorInvalidValue;
}

} // namespace troupe::collectives::kernels
