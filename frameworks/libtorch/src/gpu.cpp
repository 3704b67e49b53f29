#include "gpu.hpp"

#include "device_choice.hpp"

#include <troupe/libtorch.hpp>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/cuda.h>

#include <cstdint>

namespace troupe::libtorch {

namespace {

c10::impl::VirtualGuardImpl streams() {
  return c10::impl::VirtualGuardImpl{c10::kCUDA};
}

} // namespace

c10::Device device_of(const train_context& ctx) {
  auto given = ctx.device() != "cpu";
  auto kind = value_or_throw(choose_device(given, given ? torch::cuda::device_count() : 0));
  // CUDA shows a worker only its own GPUs.
  return kind == device_kind::gpu ? c10::Device{c10::kCUDA, 0} : c10::Device{c10::kCPU};
}

bool is_on_gpu(const train_context& ctx, const at::Tensor& tensor) {
  return ctx.device() != "cpu" && tensor.is_cuda();
}

gpu_stream_scope::gpu_stream_scope(train_context& ctx) {
  const auto device = device_of(ctx);
  if (!device.is_cuda())
    return;
  // The id of a stream that LibTorch has not made is its handle.
  stream_.emplace(c10::Stream::UNSAFE, device,
                  static_cast<c10::StreamId>(reinterpret_cast<std::intptr_t>(ctx.gpu_stream().handle())));
  before_ = streams().exchangeStream(*stream_);
  // What it has to do is done before the new stream uses its results.
  before_->synchronize();
}

gpu_stream_scope::~gpu_stream_scope() {
  if (!stream_)
    return;
  try {
    stream_->synchronize();
  } catch (const std::exception&) {
    // A GPU that has failed: the run is told by what failed first.
  }
  streams().exchangeStream(*before_);
}

bool gpu_stream_scope::is_current() const {
  return !stream_ || streams().getStream(stream_->device()) == *stream_;
}

} // namespace troupe::libtorch
