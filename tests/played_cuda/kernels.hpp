#pragma once

#include <cuda_runtime.h>

#include <functional>

namespace played_cuda {

/// Runs a kernel on the calling thread, block after block.
void run_kernel(void (*kernel)(), dim3 blocks, dim3 threads, const std::function<void()>& thread);

} // namespace played_cuda
