#pragma once

#include <troupe/train_context.hpp>

#include <c10/core/Stream.h>

#include <optional>

namespace at {
class Tensor;
}

/// LibTorch and the GPU of a worker. Apart from the rest, because the tests replace it: a LibTorch that knows no GPU
/// computes there in the memory of a fake one.
namespace troupe::libtorch {

/// Whether the worker's GPU has this tensor.
[[nodiscard]] bool is_on_gpu(const train_context& ctx, const at::Tensor& tensor);

/// While it exists, LibTorch's work of the constructing thread, and that of backward passes which it begins, is on
/// `train_context::gpu_stream`. Of no effect in a worker without a GPU.
class gpu_stream_scope {
 public:
  explicit gpu_stream_scope(train_context& ctx);
  gpu_stream_scope(const gpu_stream_scope&) = delete;
  gpu_stream_scope& operator=(const gpu_stream_scope&) = delete;
  /// Waits for the stream's work.
  ~gpu_stream_scope();

  /// Whether what the calling thread does now is on that stream.
  [[nodiscard]] bool is_current() const;

 private:
  std::optional<c10::Stream> stream_;
  std::optional<c10::Stream> before_;
};

} // namespace troupe::libtorch
