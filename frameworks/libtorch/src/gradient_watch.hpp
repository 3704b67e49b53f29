#pragma once

#include "gradient_layout.hpp"

#include <troupe/train_context.hpp>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace troupe::libtorch {

/// Tells a shard, from autograd's hooks, which parts of its gradient are written: their reduction begins while backward
/// computes the others. The hooks run in the thread that called `backward()` (on the CPU), in the middle of autograd,
/// which must not see exceptions of ours: they are kept until the shard is done.
class gradient_watch : public std::enable_shared_from_this<gradient_watch> {
 public:
  /// `layout` outlives it.
  explicit gradient_watch(const gradient_layout& layout) : layout_(layout) {}

  /// Watches a parameter, whose gradient has this part of the layout. A shared_ptr owns the watch.
  void add(const at::Tensor& parameter, std::string name, std::size_t part);

  /// `current` stays where it is until `end`.
  void begin(shard& current);
  /// Throws what was kept.
  void end();
  /// Forgets the shard, if there is one.
  void leave() noexcept { shard_ = nullptr; }

 private:
  struct watched {
    std::string name;
    std::size_t part;
    /// Lives as long as somebody holds it.
    std::shared_ptr<torch::autograd::Node> accumulator;
    bool written = false;
  };

  void note(std::size_t index);

  const gradient_layout& layout_;
  std::vector<watched> list_;
  shard* shard_ = nullptr;
  std::thread::id thread_;
  std::exception_ptr trouble_;
};

} // namespace troupe::libtorch
