#include "average_names.hpp"
#include "element_types.hpp"
#include "module_tensors.hpp"

#include <troupe/libtorch.hpp>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <utility>

namespace troupe::libtorch {

namespace {

/// A tensor of the module. A shared tensor has several names.
struct wanted_tensor {
  at::Tensor tensor;
  std::vector<std::string> names;
};

/// A tensor of the module, and the index of its values in the checkpoint.
struct stored_values {
  at::Tensor tensor;
  std::size_t index;
};

std::string shape_text(at::IntArrayRef sizes) {
  return fmt::format("[{}]", fmt::join(sizes.begin(), sizes.end(), ", "));
}

/// How the checkpoint's tensor differs in type or shape; empty if it does not.
std::string difference(const tensor_spec& stored, const at::Tensor& tensor) {
  std::vector<std::int64_t> shape{stored.shape.begin(), stored.shape.end()};
  if (scalar_type_from(stored.type) != tensor.scalar_type())
    return fmt::format(" is {} there, and {} in the module", to_string(stored.type), toString(tensor.scalar_type()));
  if (at::IntArrayRef{shape} != tensor.sizes())
    return fmt::format(" has shape {} there, and {} in the module", shape_text(shape), shape_text(tensor.sizes()));
  return {};
}

class module_loader {
 public:
  module_loader(const serialization::checkpoint& source, weights which) : source_(source), which_(which) {}

  /// Parameters that were not trained have no average.
  void add_parameter(const std::string& name, const at::Tensor& tensor) {
    auto averaged = average_prefix + name;
    auto is_averaged = which_ == weights::averaged && source_.find(averaged).has_value();
    has_averages_ = has_averages_ || is_averaged;
    add(is_averaged ? averaged : name, tensor);
  }

  void add(const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || tensor.numel() == 0)
      return;
    for (auto& each : wanted_)
      if (each.tensor.is_same(tensor))
        return each.names.push_back(name);
    wanted_.push_back({tensor, {name}});
  }

  [[nodiscard]] expected<void> load() {
    if (which_ == weights::averaged && !has_averages_)
      return fail(errc::not_found, fmt::format("{} has no averages of this module's parameters: its program trained "
                                               "without libtorch::weight_average",
                                               source_.directory().string()));
    for (const auto& each : wanted_)
      find(each);
    if (!differences_.empty())
      return fail(errc::mismatch,
                  fmt::format("{} is of another model: tensor {}", source_.directory().string(), differences_));
    auto guard = at::NoGradGuard{};
    for (const auto& each : found_) {
      auto values = at::empty(each.tensor.sizes(), at::TensorOptions{each.tensor.scalar_type()});
      auto bytes = std::span{static_cast<std::byte*>(values.data_ptr()), values.nbytes()};
      TROUPE_TRY(source_.read_tensor(each.index, bytes));
      each.tensor.copy_(values);
    }
    return {};
  }

 private:
  /// Troupe's checkpoints have the first of a tensor's names, those imported from PyTorch all of them.
  void find(const wanted_tensor& wanted) {
    auto known = std::ranges::find_if(wanted.names, [&](const auto& x) { return source_.find(x).has_value(); });
    const auto& name = known == wanted.names.end() ? wanted.names.front() : *known;
    auto index = source_.find(name);
    auto wrong = index ? difference(source_.content().tensors[*index].spec, wanted.tensor) : " is missing";
    if (wrong.empty())
      found_.push_back({wanted.tensor, *index});
    else
      differences_ += fmt::format("{}'{}'{}", differences_.empty() ? "" : "; ", name, wrong);
  }

  const serialization::checkpoint& source_;
  weights which_;
  bool has_averages_ = false;
  std::vector<wanted_tensor> wanted_;
  std::vector<stored_values> found_;
  std::string differences_;
};

class module_predictor final : public inference::predictor {
 public:
  module_predictor(std::shared_ptr<void> model, std::vector<std::string> outputs,
                   std::function<at::Tensor(const data::batch&)> forward)
      : model_(std::move(model)), outputs_(std::move(outputs)), forward_(std::move(forward)) {}

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    auto guard = at::NoGradGuard{};
    auto values = forward_(rows).to(at::kCPU, at::kFloat).contiguous();
    auto expected_sizes =
        std::vector<std::int64_t>{static_cast<std::int64_t>(rows.size()), static_cast<std::int64_t>(outputs_.size())};
    if (values.sizes() != at::IntArrayRef{expected_sizes} || out.size_bytes() != values.nbytes())
      return fail(errc::mismatch,
                  fmt::format("the predictor's function returned a tensor of shape {}, expected {}: a row "
                              "per sample, a number per output",
                              shape_text(values.sizes()), shape_text(expected_sizes)));
    std::memcpy(out.data(), values.data_ptr(), out.size_bytes());
    return {};
  }

 private:
  /// Kept for `forward_`.
  std::shared_ptr<void> model_;
  std::vector<std::string> outputs_;
  std::function<at::Tensor(const data::batch&)> forward_;
};

} // namespace

namespace {

expected<void> load_tensors(const serialization::checkpoint& source, const module_tensors& model, weights which) {
  auto loader = module_loader{source, which};
  for (const auto& each : model.parameters)
    loader.add_parameter(each.name, each.tensor);
  for (const auto& each : model.buffers)
    loader.add(each.name, each.tensor);
  return loader.load();
}

} // namespace

expected<void> load_module(const serialization::checkpoint& source, torch::nn::Module& model, weights which) {
  return load_tensors(source, tensors_of(model), which);
}

expected<void> load_module(const serialization::checkpoint& source, torch::jit::Module& model, weights which) {
  return load_tensors(source, tensors_of(model), which);
}

expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                  std::shared_ptr<torch::nn::Module> model,
                                                  std::vector<std::string> outputs,
                                                  std::function<at::Tensor(const data::batch& rows)> forward,
                                                  weights which) {
  TROUPE_TRY(load_module(source, *model, which));
  model->eval();
  return std::make_unique<module_predictor>(std::move(model), std::move(outputs), std::move(forward));
}

expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                  const torch::jit::Module& model, std::vector<std::string> outputs,
                                                  std::function<at::Tensor(const data::batch& rows)> forward,
                                                  weights which) {
  auto own = std::make_shared<torch::jit::Module>(model);
  TROUPE_TRY(load_module(source, *own, which));
  own->eval();
  return std::make_unique<module_predictor>(std::move(own), std::move(outputs), std::move(forward));
}

} // namespace troupe::libtorch
