#include <troupe/training/schedule.hpp>

#include <troupe/error.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numbers>
#include <string_view>
#include <utility>

namespace troupe::training {

namespace {

void require_steps(std::string_view what, std::uint64_t steps) {
  if (steps == 0)
    throw exception{errc::invalid_argument, fmt::format("training::{} of 0 steps: it needs at least 1", what)};
}

void require_factor(std::string_view what, double factor) {
  if (!std::isfinite(factor) || factor < 0)
    throw exception{errc::invalid_argument,
                    fmt::format("training::{} with a factor of {}: it must be finite and not negative", what, factor)};
}

/// Half a cosine from `first` to `last` as `share` goes from 0 to 1.
double half_cosine(double first, double last, double share) {
  return last + 0.5 * (1 + std::cos(std::numbers::pi * share)) * (first - last);
}

/// The steps before this one, at most `limit`, as a share of it.
double share_done(std::uint64_t step, std::uint64_t limit) {
  return static_cast<double>(std::min(step - 1, limit)) / static_cast<double>(limit);
}

} // namespace

schedule constant() {
  return schedule{[](std::uint64_t) { return 1.0; }};
}

schedule step_decay(std::uint64_t steps, double factor) {
  require_steps("step_decay", steps);
  require_factor("step_decay", factor);
  return schedule{[=](std::uint64_t step) {
    const auto passed = (step - 1) / steps;
    return std::pow(factor, static_cast<double>(passed));
  }};
}

schedule multi_step_decay(std::vector<std::uint64_t> after, double factor) {
  require_factor("multi_step_decay", factor);
  std::ranges::sort(after);
  return schedule{[after = std::move(after), factor](std::uint64_t step) {
    auto passed = std::ranges::upper_bound(after, step - 1) - after.begin();
    return std::pow(factor, static_cast<double>(passed));
  }};
}

schedule exponential_decay(double factor) {
  return step_decay(1, factor);
}

schedule linear(std::uint64_t steps, double first, double last) {
  require_steps("linear", steps);
  require_factor("linear", first);
  require_factor("linear", last);
  return schedule{[=](std::uint64_t step) { return first + share_done(step, steps) * (last - first); }};
}

schedule cosine(std::uint64_t steps, double last) {
  require_steps("cosine", steps);
  require_factor("cosine", last);
  return schedule{[=](std::uint64_t step) { return half_cosine(1, last, share_done(step, steps)); }};
}

schedule warm_up(std::uint64_t steps, schedule then) {
  return schedule{[steps, then = std::move(then)](std::uint64_t step) {
    if (step > steps)
      return then(step - steps);
    return then(1) * (static_cast<double>(step) / static_cast<double>(steps + 1));
  }};
}

schedule one_cycle(one_cycle_shape shape) {
  require_steps("one_cycle", shape.steps);
  require_factor("one_cycle", shape.first);
  require_factor("one_cycle", shape.last);
  if (!(shape.rise > 0 && shape.rise < 1))
    throw exception{
        errc::invalid_argument,
        fmt::format("training::one_cycle with a rise of {}: it is a share of the steps, between 0 and 1", shape.rise)};
  // In steps before the present one, as PyTorch counts.
  const auto end = static_cast<double>(shape.steps) - 1;
  const auto top = std::max(shape.rise * static_cast<double>(shape.steps) - 1, 0.0);
  return schedule{[=](std::uint64_t step) {
    const auto done = std::min(static_cast<double>(step - 1), end);
    if (done < top)
      return half_cosine(shape.first, 1, done / top);
    return end > top ? half_cosine(1, shape.last, (done - top) / (end - top)) : 1.0;
  }};
}

} // namespace troupe::training
