#include "optimizer_state.hpp"

#include <troupe/error.hpp>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <fmt/format.h>
#include <memory>
#include <sstream>
#include <type_traits>

namespace troupe::libtorch {

namespace {

using torch::optim::Optimizer;

/// LibTorch 1 uses the address as text for the key, later versions the address itself.
template <class Key>
Key key_of(const at::Tensor& parameter) {
  if constexpr (std::is_pointer_v<Key>) {
    return parameter.unsafeGetTensorImpl();
  } else {
    std::ostringstream text;
    text << parameter.unsafeGetTensorImpl();
    return text.str();
  }
}

template <class State>
State& state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  using states = std::remove_reference_t<decltype(optimizer.state())>;
  auto& slot = optimizer.state()[key_of<typename states::key_type>(parameter)];
  if (!slot)
    slot = std::make_unique<State>();
  return static_cast<State&>(*slot);
}

/// Lists existing state, and creates missing state as zeros.
class collector {
 public:
  explicit collector(optimizer_state& target) : target_(target) {}

  void begin(const std::string& parameter, const at::Tensor& like) {
    parameter_ = parameter;
    like_ = like;
  }

  at::Tensor add(const char* name, const at::Tensor& present) {
    auto tensor = present.defined() ? present : at::zeros_like(like_, at::MemoryFormat::Preserve);
    target_.tensors.emplace_back(fmt::format("{}/{}", parameter_, name), tensor);
    return tensor;
  }

  void count(std::int64_t& steps) { target_.counts.push_back(&steps); }

 private:
  optimizer_state& target_;
  std::string parameter_;
  at::Tensor like_;
};

template <class State, class Options>
void collect_adam(Optimizer& optimizer, const at::Tensor& parameter, const Options& options, collector& out) {
  auto& state = state_of<State>(optimizer, parameter);
  state.exp_avg(out.add("exp_avg", state.exp_avg()));
  state.exp_avg_sq(out.add("exp_avg_sq", state.exp_avg_sq()));
  if (options.amsgrad())
    state.max_exp_avg_sq(out.add("max_exp_avg_sq", state.max_exp_avg_sq()));
  out.count(state.step());
}

using collect_function = void (*)(Optimizer&, const at::Tensor&, torch::optim::OptimizerOptions&, collector&);

void collect_sgd(Optimizer& optimizer, const at::Tensor& parameter, torch::optim::OptimizerOptions& options,
                 collector& out) {
  if (static_cast<torch::optim::SGDOptions&>(options).momentum() == 0)
    return;
  auto& state = state_of<torch::optim::SGDParamState>(optimizer, parameter);
  state.momentum_buffer(out.add("momentum_buffer", state.momentum_buffer()));
}

void collect_rmsprop(Optimizer& optimizer, const at::Tensor& parameter, torch::optim::OptimizerOptions& any_options,
                     collector& out) {
  auto& options = static_cast<torch::optim::RMSpropOptions&>(any_options);
  auto& state = state_of<torch::optim::RMSpropParamState>(optimizer, parameter);
  state.square_avg(out.add("square_avg", state.square_avg()));
  if (options.momentum() > 0)
    state.momentum_buffer(out.add("momentum_buffer", state.momentum_buffer()));
  if (options.centered())
    state.grad_avg(out.add("grad_avg", state.grad_avg()));
  out.count(state.step());
}

/// Adagrad creates its state in its constructor.
void collect_adagrad(Optimizer& optimizer, const at::Tensor& parameter, torch::optim::OptimizerOptions&,
                     collector& out) {
  auto& state = state_of<torch::optim::AdagradParamState>(optimizer, parameter);
  state.sum(out.add("sum", state.sum()));
  out.count(state.step());
}

collect_function collector_for(const Optimizer& optimizer) {
  namespace optim = torch::optim;
  if (dynamic_cast<const optim::Adam*>(&optimizer) != nullptr)
    return [](Optimizer& o, const at::Tensor& p, optim::OptimizerOptions& options, collector& out) {
      collect_adam<optim::AdamParamState>(o, p, static_cast<optim::AdamOptions&>(options), out);
    };
  if (dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr)
    return [](Optimizer& o, const at::Tensor& p, optim::OptimizerOptions& options, collector& out) {
      collect_adam<optim::AdamWParamState>(o, p, static_cast<optim::AdamWOptions&>(options), out);
    };
  if (dynamic_cast<const optim::SGD*>(&optimizer) != nullptr)
    return collect_sgd;
  if (dynamic_cast<const optim::RMSprop*>(&optimizer) != nullptr)
    return collect_rmsprop;
  if (dynamic_cast<const optim::Adagrad*>(&optimizer) != nullptr)
    return collect_adagrad;
  throw exception{errc::invalid_argument,
                  fmt::format("libtorch::replica does not know the state of an optimizer of type "
                              "{}: use Adam, AdamW, SGD, RMSprop or Adagrad",
                              c10::demangle(typeid(optimizer).name()))};
}

} // namespace

optimizer_state make_optimizer_state(Optimizer& optimizer, const parameter_names& names) {
  auto collect = collector_for(optimizer);
  auto guard = at::NoGradGuard{};
  optimizer_state result;
  auto out = collector{result};
  for (std::size_t group = 0; group < optimizer.param_groups().size(); ++group) {
    auto& each = optimizer.param_groups()[group];
    for (std::size_t i = 0; i < each.params().size(); ++i) {
      const auto& parameter = each.params()[i];
      auto name = names.find(parameter.unsafeGetTensorImpl());
      if (name == names.end())
        throw exception{
            errc::invalid_argument,
            fmt::format("parameter {} of the optimizer's group {} is not in the module: create the optimizer "
                        "from the parameters of the module passed to libtorch::replica",
                        i, group)};
      // A parameter without a gradient takes no steps.
      if (!parameter.requires_grad())
        continue;
      out.begin(name->second, parameter);
      collect(optimizer, parameter, each.options(), out);
    }
  }
  return result;
}

void take_step(Optimizer& optimizer, bool first) {
  if (!first || dynamic_cast<torch::optim::SGD*>(&optimizer) == nullptr) {
    optimizer.step();
    return;
  }
  // LibTorch's first momentum is the gradient itself, whatever the dampening. Ours already exists, and is zero.
  std::vector<double> dampening;
  for (auto& group : optimizer.param_groups()) {
    auto& options = static_cast<torch::optim::SGDOptions&>(group.options());
    dampening.push_back(options.dampening());
    options.dampening(0);
  }
  optimizer.step();
  for (std::size_t i = 0; i < dampening.size(); ++i)
    static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[i].options()).dampening(dampening[i]);
}

} // namespace troupe::libtorch
