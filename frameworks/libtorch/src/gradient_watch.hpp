#pragma once

#include "gpu.hpp"
#include "torch_version.hpp"

#include <troupe/train_context.hpp>
#include <troupe/training/gradient_layout.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace troupe::libtorch {

/// Uses autograd's hooks to mark the written parts of a shard's gradient as ready, so that their reduction starts while
/// backward computes the others. The hooks run inside autograd, which must not see our exceptions: they are kept until
/// the shard is complete. On the CPU they run in the thread that has called `backward()`; on a GPU in a thread of
/// autograd's, while that one waits.
class gradient_watch : public std::enable_shared_from_this<gradient_watch> {
 public:
  /// `layout` and `stream` must outlive the watch.
  gradient_watch(const training::gradient_layout& layout, const gpu_stream_scope& stream, bool is_on_gpu)
      : layout_(layout), stream_(stream), is_on_gpu_(is_on_gpu) {}

  /// Watches a parameter, whose gradient is this part of the layout. The watch must be owned by a shared_ptr.
  void add(const at::Tensor& parameter, std::string name, std::size_t part);

  /// `current` must not move until `end`.
  void begin(basic_shard& current);
  /// Throws an exception that was kept.
  void end();
  /// Forgets the current shard, if any.
  void leave() noexcept { shard_ = nullptr; }

 private:
  struct watched {
    std::string name;
    std::size_t part;
    /// Held here because autograd keeps only a weak reference.
    accumulator_pointer accumulator;
    bool written = false;
  };

  void note(std::size_t index);

  const training::gradient_layout& layout_;
  const gpu_stream_scope& stream_;
  const bool is_on_gpu_;
  std::vector<watched> list_;
  basic_shard* shard_ = nullptr;
  std::thread::id thread_;
  std::exception_ptr trouble_;
};

} // namespace troupe::libtorch
