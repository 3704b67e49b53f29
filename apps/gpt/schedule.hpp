#pragma once

#include <cstdint>

namespace gpt {

/// A learning rate that increases linearly for `warmup_steps`, then follows half a cosine down to `last` at step
/// `decay_steps`, and stays there.
struct schedule {
  double highest = 1e-3;
  double last = 1e-4;
  std::uint64_t warmup_steps = 100;
  std::uint64_t decay_steps = 2000;
};

/// The learning rate of a step, as nanoGPT's `get_lr`. It depends only on the step's number, which counts from 1.
[[nodiscard]] double learning_rate(const schedule& how, std::uint64_t step) noexcept;

} // namespace gpt
