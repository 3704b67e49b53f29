#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

namespace troupe::training {

/// A factor of the learning rate as a function of the step's number, from 1. Nothing about it outlives a step, so that
/// a resumed run and a joiner have it without more. The functions below throw `exception` (`errc::invalid_argument`)
/// for 0 steps and for factors that are negative or not finite.
///
///     const auto rate = training::warm_up(100, training::cosine(1900, 0.1));
///     ... 3e-4 * rate(step.number())
class schedule {
 public:
  /// `factor` is a pure function: it depends on nothing but the step.
  explicit schedule(std::function<double(std::uint64_t step)> factor) : factor_(std::move(factor)) {}

  [[nodiscard]] double operator()(std::uint64_t step) const { return factor_(step); }

 private:
  std::function<double(std::uint64_t step)> factor_;
};

/// Always 1.
[[nodiscard]] schedule constant();

/// Multiplies by `factor` after every `steps` steps: PyTorch's StepLR.
[[nodiscard]] schedule step_decay(std::uint64_t steps, double factor);

/// Multiplies by `factor` after each of these numbers of steps: PyTorch's MultiStepLR.
[[nodiscard]] schedule multi_step_decay(std::vector<std::uint64_t> after, double factor);

/// Multiplies by `factor` after every step: PyTorch's ExponentialLR.
[[nodiscard]] schedule exponential_decay(double factor);

/// From `first` in step 1 to `last` after `steps` steps, and `last` from then on: PyTorch's LinearLR.
[[nodiscard]] schedule linear(std::uint64_t steps, double first, double last);

/// Half a cosine from 1 in step 1 to `last` after `steps` steps, and `last` from then on: PyTorch's CosineAnnealingLR
/// up to there. Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017.
[[nodiscard]] schedule cosine(std::uint64_t steps, double last = 0);

/// Rises evenly for `steps` steps, by 1 / (steps + 1) of what `then` begins with in each; then follows `then` from its
/// own step 1.
[[nodiscard]] schedule warm_up(std::uint64_t steps, schedule then);

struct one_cycle_shape {
  /// All steps of the cycle.
  std::uint64_t steps = 0;
  /// The share of steps in which the rate rises.
  double rise = 0.3;
  /// The factor in step 1.
  double first = 1.0 / 25;
  /// The factor in the last step.
  double last = 1.0 / 25 / 1e4;
};

/// Rises from `first` to 1 and falls to `last`, each half a cosine: PyTorch's OneCycleLR with its defaults. Smith and
/// Topin, "Super-Convergence", 2018.
[[nodiscard]] schedule one_cycle(one_cycle_shape shape);

} // namespace troupe::training
