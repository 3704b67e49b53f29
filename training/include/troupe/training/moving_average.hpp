#pragma once

#include <troupe/tracked_state.hpp>

#include <span>
#include <string>
#include <vector>

namespace troupe::training {

/// The exponential moving average of weights over the steps, which often predicts better than the weights themselves.
/// Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", 1992.
class moving_average {
 public:
  /// Tracks the average as `name`, and restores a checkpoint's; otherwise it begins with the present weights. The
  /// weights outlive this object. Throws `exception` as `tracked_state::track` does, and `errc::invalid_argument` for a
  /// decay outside of 0 to 1.
  moving_average(tracked_state& state, std::string name, std::span<const float> weights, double decay);

  /// After each step: average = decay * average + (1 - decay) * weights.
  void update() noexcept;

  [[nodiscard]] std::span<const float> values() const noexcept { return average_; }

  /// Exchanges the average and `weights`, which are those of the constructor: once to evaluate with the average, and
  /// once to go on training. In one step's body, after `all_reduce`.
  void exchange_with(std::span<float> weights);

 private:
  std::span<const float> weights_;
  float decay_;
  std::vector<float> average_;
};

} // namespace troupe::training
