#pragma once

#include <troupe/tracked_state.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace troupe::training {

/// The factors are powers of two, so that scaling rounds nothing.
struct loss_scale_options {
  double first = 65536;
  /// After `growth_steps` steps in a row with a finite gradient.
  double growth = 2;
  std::uint64_t growth_steps = 2000;
  /// After a step whose gradient is not finite.
  double backoff = 0.5;
};

/// Multiplies losses so that gradients in half precision do not vanish, and finds the largest factor that works:
/// PyTorch's GradScaler. Micikevicius and others, "Mixed Precision Training", 2018. The decision is made on the reduced
/// gradient, so that it is the same on any number of workers.
///
///     (loss * scale.value()).backward();
///     auto mean = step.all_reduce();
///     if (scale.update(mean))
///       model.apply(mean, 1 / scale.before());
class loss_scale {
 public:
  /// Tracks the factor, and restores a checkpoint's. Throws `exception` as `tracked_state::track` does, and
  /// `errc::invalid_argument` for options that are not powers of two, a growth below 1, a backoff that is not below 1
  /// and 0 growth steps.
  explicit loss_scale(tracked_state& state, loss_scale_options options = {}, std::string name = "loss_scale");

  /// The present step's factor.
  [[nodiscard]] double value() const noexcept { return state_[0]; }

  /// After `all_reduce`: whether the gradient is finite. Otherwise leave the step out. Changes the factor for the next.
  bool update(std::span<const float> gradient);
  /// The same for a gradient elsewhere, such as on a GPU, of which the caller knows whether it is finite.
  bool update_with(bool is_finite);

  /// After `update`: the factor that the gradient contains.
  [[nodiscard]] double before() const noexcept { return before_; }

 private:
  loss_scale_options options_;
  /// The factor, and the steps in a row with a finite gradient.
  std::vector<double> state_;
  double before_;
};

} // namespace troupe::training
