#include "average_names.hpp"
#include "module_tensors.hpp"
#include "tracked_tensor.hpp"

#include <troupe/libtorch.hpp>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <fmt/format.h>
#include <set>
#include <utility>

namespace troupe::libtorch {

class weight_average::impl {
 public:
  impl(train_context& ctx, const std::vector<named_tensor>& parameters, double decay) : share_(1 - decay) {
    if (!(decay >= 0 && decay < 1))
      throw exception{errc::invalid_argument,
                      fmt::format("libtorch::weight_average has a decay of {}: it is at least 0 and below 1", decay)};
    std::set<const void*> known;
    for (const auto& [name, parameter] : parameters) {
      // Shared parameters have several names.
      if (!parameter.defined() || !parameter.requires_grad() || !known.insert(parameter.unsafeGetTensorImpl()).second)
        continue;
      averages_.emplace_back(ctx, average_prefix + name, parameter.detach().clone(), tracked_tensor::memory::own);
      parameters_.push_back(parameter);
    }
    ctx.state().around_body([this](std::uint64_t) { load(); }, [] {});
  }

  void update() {
    auto guard = at::NoGradGuard{};
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto average = averages_[i].live();
      average.add_(parameters_[i].sub(average), share_);
      averages_[i].store();
    }
  }

  void evaluate(const std::function<void()>& function) {
    exchange();
    try {
      function();
    } catch (...) {
      // The run goes on where a lost member interrupted the evaluation.
      exchange();
      throw;
    }
    exchange();
  }

 private:
  /// A joiner or a resumed run has averages that this object did not compute.
  void load() {
    for (auto& each : averages_)
      each.load();
  }

  void exchange() {
    auto guard = at::NoGradGuard{};
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      auto average = averages_[i].live();
      auto kept = parameters_[i].clone();
      parameters_[i].copy_(average);
      average.copy_(kept);
    }
  }

  double share_;
  std::vector<at::Tensor> parameters_;
  std::vector<tracked_tensor> averages_;
};

weight_average::weight_average(train_context& ctx, torch::nn::Module& model, double decay)
    : impl_(std::make_unique<impl>(ctx, tensors_of(model).parameters, decay)) {}

weight_average::weight_average(train_context& ctx, torch::jit::Module& model, double decay)
    : impl_(std::make_unique<impl>(ctx, tensors_of(model).parameters, decay)) {}

weight_average::~weight_average() = default;
weight_average::weight_average(weight_average&&) noexcept = default;
weight_average& weight_average::operator=(weight_average&&) noexcept = default;

void weight_average::update() {
  impl_->update();
}

void weight_average::evaluate(const std::function<void()>& function) {
  impl_->evaluate(function);
}

} // namespace troupe::libtorch
