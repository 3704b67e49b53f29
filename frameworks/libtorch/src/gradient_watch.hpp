#pragma once

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
/// backward computes the others. The hooks run in the thread that called `backward()` (on the CPU), inside autograd,
/// which must not see our exceptions: they are kept until the shard is complete.
class gradient_watch : public std::enable_shared_from_this<gradient_watch> {
 public:
  /// `layout` must outlive the watch.
  explicit gradient_watch(const training::gradient_layout& layout) : layout_(layout) {}

  /// Watches a parameter, whose gradient is this part of the layout. The watch must be owned by a shared_ptr.
  void add(const at::Tensor& parameter, std::string name, std::size_t part);

  /// `current` must not move until `end`.
  void begin(shard& current);
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
  std::vector<watched> list_;
  shard* shard_ = nullptr;
  std::thread::id thread_;
  std::exception_ptr trouble_;
};

} // namespace troupe::libtorch
