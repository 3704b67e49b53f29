#include "optimizer_options.hpp"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <utility>

namespace troupe::libtorch {

namespace {

namespace optim = torch::optim;

template <class Options>
std::vector<double*> numbers_of_adam(Options& options) {
  auto& [first, second] = options.betas();
  return {&options.lr(), &first, &second, &options.eps(), &options.weight_decay()};
}

/// Of an optimizer that `make_optimizer_state` knows.
std::vector<double*> numbers_of(optim::OptimizerParamGroup& group) {
  auto& options = group.options();
  if (auto* adam = dynamic_cast<optim::AdamOptions*>(&options))
    return numbers_of_adam(*adam);
  if (auto* adamw = dynamic_cast<optim::AdamWOptions*>(&options))
    return numbers_of_adam(*adamw);
  if (auto* sgd = dynamic_cast<optim::SGDOptions*>(&options))
    return {&sgd->lr(), &sgd->momentum(), &sgd->dampening(), &sgd->weight_decay()};
  if (auto* rmsprop = dynamic_cast<optim::RMSpropOptions*>(&options))
    return {&rmsprop->lr(), &rmsprop->alpha(), &rmsprop->eps(), &rmsprop->weight_decay(), &rmsprop->momentum()};
  if (auto* adagrad = dynamic_cast<optim::AdagradOptions*>(&options))
    return {&adagrad->lr(), &adagrad->lr_decay(), &adagrad->weight_decay(), &adagrad->eps()};
  return {};
}

} // namespace

optimizer_options::optimizer_options(optim::Optimizer& optimizer) : optimizer_(optimizer) {
  const auto now = present();
  numbers_of_group_ = now.size() / optimizer.param_groups().size();
  values_.resize(2 * now.size());
}

void optimizer_options::add(optim::LRScheduler& scheduler, std::uint64_t steps) {
  schedulers_.push_back({&scheduler, steps});
}

void optimizer_options::follow(training::schedule factor) {
  factor_ = std::move(factor);
  rates_.clear();
  for (auto& group : optimizer_.param_groups())
    rates_.push_back(group.options().get_lr());
}

void optimizer_options::on_apply(std::uint64_t number) {
  for (std::size_t i = 0; factor_ && i < rates_.size(); ++i)
    optimizer_.param_groups()[i].options().set_lr(rates_[i] * (*factor_)(number));
}

std::vector<std::uint64_t> optimizer_options::shape() const {
  return {2, optimizer_.param_groups().size(), numbers_of_group_};
}

std::vector<double> optimizer_options::present() const {
  std::vector<double> result;
  for (auto& group : optimizer_.param_groups())
    for (const auto* number : numbers_of(group))
      result.push_back(*number);
  return result;
}

void optimizer_options::set(std::vector<double> numbers) {
  auto next = numbers.begin();
  for (auto& group : optimizer_.param_groups())
    for (auto* number : numbers_of(group))
      *number = *next++;
}

void optimizer_options::load(std::uint64_t steps) {
  auto now = present();
  const auto half = values_.begin() + static_cast<std::ptrdiff_t>(now.size());
  const auto then = std::vector<double>(values_.begin(), half);
  // A joiner has the state of the members since it was made, and goes on with it whatever its program says.
  const auto is_of_members = !first_.empty() || values_ != restored_;
  run_schedulers(steps);
  if (steps > 0 && (is_of_members || now == then)) {
    set({half, values_.end()});
    first_ = then;
  } else {
    first_ = std::move(now);
  }
}

void optimizer_options::run_schedulers(std::uint64_t steps) {
  for (auto& each : schedulers_)
    for (; each.taken < steps / each.every; ++each.taken)
      each.scheduler->step();
}

void optimizer_options::on_step(std::uint64_t steps) {
  run_schedulers(steps);
  after_step_ = present();
}

bool optimizer_options::store() {
  const auto now = present();
  std::ranges::copy(first_, values_.begin());
  std::ranges::copy(now, values_.begin() + static_cast<std::ptrdiff_t>(now.size()));
  return now != after_step_;
}

} // namespace troupe::libtorch
