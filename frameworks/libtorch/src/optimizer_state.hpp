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

/// The state that an optimizer keeps between steps. LibTorch creates most of it in the first step; here it exists from
/// the beginning, with values that yield the same steps.
struct optimizer_state {
  /// By name: "PARAMETER/exp_avg".
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  /// The parameters' step counts, inside the optimizer.
  std::vector<std::int64_t*> counts;
};

/// Names by tensor identity.
using parameter_names = std::map<const void*, std::string>;

/// Throws `exception` for an unknown optimizer, and for a parameter that is not among `names`.
[[nodiscard]] optimizer_state make_optimizer_state(torch::optim::Optimizer& optimizer, const parameter_names& names);

/// Lets the optimizer take its next step. `first` says whether it is the very first.
void take_step(torch::optim::Optimizer& optimizer, bool first);

} // namespace troupe::libtorch
