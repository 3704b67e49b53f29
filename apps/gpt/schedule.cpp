#include <gpt/schedule.hpp>

#include <cmath>
#include <numbers>

namespace gpt {

double learning_rate(const schedule& how, std::uint64_t step) noexcept {
  auto done = static_cast<double>(step - 1);
  auto warmup = static_cast<double>(how.warmup_steps);
  auto decay = static_cast<double>(how.decay_steps);
  if (done < warmup)
    return how.highest * (done + 1) / (warmup + 1);
  if (done >= decay)
    return how.last;
  auto share = (done - warmup) / (decay - warmup);
  return how.last + 0.5 * (1 + std::cos(std::numbers::pi * share)) * (how.highest - how.last);
}

} // namespace gpt
