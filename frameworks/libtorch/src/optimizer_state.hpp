#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace troupe::libtorch {

/// What an optimizer keeps from step to step. LibTorch makes most of it in the first step; here it is there from the
/// beginning, with the values that give the same steps.
struct optimizer_state {
  /// By name: "PARAMETER/exp_avg".
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  /// The steps that parameters have had, inside the optimizer.
  std::vector<std::int64_t*> counts;
};

/// By the tensors' identity.
using parameter_names = std::map<const void*, std::string>;

/// Throws `exception` for an optimizer of unknown kind, and for a parameter that is not among `names`.
[[nodiscard]] optimizer_state make_optimizer_state(torch::optim::Optimizer& optimizer, const parameter_names& names);

/// Has the optimizer take its next step. `first` says whether it is the first of all.
void take_step(torch::optim::Optimizer& optimizer, bool first);

} // namespace troupe::libtorch
