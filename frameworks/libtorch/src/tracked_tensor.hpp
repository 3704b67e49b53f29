#pragma once

#include <troupe/tracked_state.hpp>

#include <ATen/core/Tensor.h>

#include <string>

namespace troupe::libtorch {

/// A tensor of LibTorch's that outlives a step, and the host memory that stands for it in the tracked state: its own
/// where that is possible, a copy otherwise.
class tracked_tensor {
 public:
  enum class memory {
    /// Host memory in the order of the dimensions stays where it is.
    own,
    /// What may be written before the step is reduced.
    copy,
  };

  /// Tracks it, which fills it from a checkpoint. Throws `exception`.
  tracked_tensor(std::string name, at::Tensor live, memory where, tracked_state& state);

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const at::Tensor& live() const noexcept { return live_; }
  /// In host memory, in the order of its dimensions.
  [[nodiscard]] const at::Tensor& tracked() const noexcept { return tracked_; }

  /// Makes the tensor what is tracked.
  void load();
  /// Tracks what the tensor is.
  void store();
  /// Throws `exception` if the tensor has other memory than when it was tracked.
  void check_place() const;

 private:
  std::string name_;
  at::Tensor live_;
  at::Tensor tracked_;
  void* place_ = nullptr;
  bool in_place_ = false;
};

} // namespace troupe::libtorch
