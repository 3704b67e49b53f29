#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <tuple>
#include <utility>

/// The parts of CUDA's language that kernels use, for a host compiler. The threads of a block run one after another in
/// one host thread and switch at barriers.

#define __global__
#define __device__
#define __host__
#define __shared__ static thread_local
#define __launch_bounds__(threads)

struct dim3 {
  unsigned x = 1;
  unsigned y = 1;
  unsigned z = 1;
};

namespace fake_cuda {

/// The position of the kernel's thread that runs now.
extern thread_local dim3 thread_index;
extern thread_local dim3 block_index;
extern thread_local dim3 block_size;
extern thread_local dim3 grid_size;

/// Enqueues a kernel on a stream, as work that runs all of its threads.
cudaError_t launch(dim3 blocks, dim3 threads, cudaStream_t stream, std::function<void()> work);
/// Calls `thread` for each thread, block after block. `kernel` identifies the kernel.
void run_kernel(void (*kernel)(), dim3 blocks, dim3 threads, const std::function<void()>& thread);
void synchronize_threads();

} // namespace fake_cuda

#define threadIdx fake_cuda::thread_index
#define blockIdx fake_cuda::block_index
#define blockDim fake_cuda::block_size
#define gridDim fake_cuda::grid_size

inline void __syncthreads() { // NOLINT(bugprone-reserved-identifier)
  fake_cuda::synchronize_threads();
}

/// As CUDA's own, for the types used here.
template <class... Parameters>
cudaError_t cudaLaunchKernel(void (*kernel)(Parameters...), dim3 blocks, dim3 threads, void** arguments, std::size_t,
                             cudaStream_t stream) {
  auto values = [&]<std::size_t... I>(std::index_sequence<I...>) {
    return std::tuple<Parameters...>{*static_cast<Parameters*>(arguments[I])...};
  }
  (std::index_sequence_for<Parameters...>{});
  return fake_cuda::launch(blocks, threads, stream, [=] {
    fake_cuda::run_kernel(reinterpret_cast<void (*)()>(kernel), blocks, threads,
                          [kernel, &values] { std::apply(kernel, values); });
  });
}
