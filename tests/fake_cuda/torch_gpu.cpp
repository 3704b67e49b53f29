#include "gpu.hpp"

#include <troupe/libtorch.hpp>

// Of frameworks/libtorch, for a LibTorch that knows no GPU: all its tensors are the fake GPU's, and its work is done
// when a call returns.
namespace troupe::libtorch {

c10::Device device_of(const train_context& /*ctx*/) {
  return c10::Device{c10::kCPU};
}

bool is_on_gpu(const train_context& ctx, const at::Tensor& /*tensor*/) {
  return ctx.device() != "cpu";
}

gpu_stream_scope::gpu_stream_scope(train_context& /*ctx*/) {}
gpu_stream_scope::~gpu_stream_scope() = default;

bool gpu_stream_scope::is_current() const {
  return true;
}

} // namespace troupe::libtorch
