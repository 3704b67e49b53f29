#pragma once

#include <charlm/element_steps.hpp>

#include <troupe/types.hpp>

#include <cstdint>
#include <span>

namespace charlm {

struct adam_options {
  /// The highest rate, reached at the end of the warm-up.
  double learning_rate = 0.004;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  /// Steps over which the rate grows from zero.
  std::uint64_t warm_up_steps = 100;
  /// The rate is constant until this step, then proportional to the inverse square root of the step number.
  std::uint64_t constant_steps = 400;
};

/// The rate of a step. It depends only on the step's number, not on the planned number of steps, so that a run can be
/// extended.
[[nodiscard]] double learning_rate(troupe::step_id step, const adam_options& options) noexcept;

/// The factors of one step's update. Steps count from 1.
[[nodiscard]] adam_factors factors_of(troupe::step_id step, const adam_options& options = {}) noexcept;

/// One update of Adam (Kingma and Ba, 2015, algorithm 1, with bias correction). The four spans have the same length;
/// `mean_gradient` is the gradient of the batch's mean loss; `step` counts from 1. Elements are independent, so
/// updating the buffers in parts gives the same bits. Throws `troupe::exception` for unequal lengths.
void adam_update(std::span<float> parameters, std::span<float> m, std::span<float> v,
                 std::span<const float> mean_gradient, troupe::step_id step, const adam_options& options = {});

} // namespace charlm
