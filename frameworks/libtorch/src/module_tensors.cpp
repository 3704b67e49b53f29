#include "module_tensors.hpp"

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

namespace troupe::libtorch {

module_tensors tensors_of(const torch::nn::Module& model) {
  module_tensors result;
  for (const auto& each : model.named_parameters())
    result.parameters.push_back({each.key(), each.value()});
  for (const auto& each : model.named_buffers())
    result.buffers.push_back({each.key(), each.value()});
  return result;
}

module_tensors tensors_of(const torch::jit::Module& model) {
  module_tensors result;
  for (const auto& each : model.named_parameters())
    result.parameters.push_back({each.name, each.value});
  for (const auto& each : model.named_buffers())
    result.buffers.push_back({each.name, each.value});
  return result;
}

} // namespace troupe::libtorch
