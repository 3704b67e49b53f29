#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace torch::jit {
struct Module;
}

namespace troupe::libtorch {

struct named_tensor {
  std::string name;
  at::Tensor tensor;
};

/// A module's own tensors, in its order and under the names of a PyTorch `state_dict`. A shared tensor has several.
struct module_tensors {
  std::vector<named_tensor> parameters;
  std::vector<named_tensor> buffers;
};

[[nodiscard]] module_tensors tensors_of(const torch::nn::Module& model);
[[nodiscard]] module_tensors tensors_of(const torch::jit::Module& model);

} // namespace troupe::libtorch
