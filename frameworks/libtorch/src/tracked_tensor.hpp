#pragma once

#include <troupe/train_context.hpp>

#include <ATen/core/Tensor.h>

#include <string>

namespace troupe::libtorch {

/// A tensor that outlives a step, and the memory that represents it in the tracked state, on the same device: its own
/// if possible, otherwise a copy.
class tracked_tensor {
 public:
  enum class memory {
    /// Tracks the tensor's own memory if it is contiguous.
    own,
    /// Always tracks a copy, for tensors that may be written before the step is reduced.
    copy,
  };

  /// Tracks the tensor, which also restores it from a checkpoint. Throws `exception`.
  tracked_tensor(train_context& ctx, std::string name, at::Tensor live, memory where);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const at::Tensor& live() const noexcept { return live_; }
  /// The tracked memory: contiguous.
  [[nodiscard]] const at::Tensor& tracked() const noexcept { return tracked_; }

  /// Copies the tracked memory to the tensor.
  void load();
  /// Copies the tensor to the tracked memory.
  void store();
  /// Throws `exception` if the tensor's memory has changed since it was tracked.
  void check_place() const;

 private:
  std::string name_;
  at::Tensor live_;
  at::Tensor tracked_;
  void* place_ = nullptr;
  bool in_place_ = false;
};

} // namespace troupe::libtorch
