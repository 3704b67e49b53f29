#include <troupe/training/loss_scale.hpp>

#include <troupe/training/gradient.hpp>

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <fmt/format.h>
#include <string_view>
#include <utility>

namespace troupe::training {

namespace {

void require_power_of_two(std::string_view what, double value) {
  int exponent = 0;
  if (!(value > 0) || !std::isfinite(value) || std::frexp(value, &exponent) != 0.5)
    throw exception{errc::invalid_argument,
                    fmt::format("loss_scale_options.{} is {}: use a power of two, which rounds nothing", what, value)};
}

} // namespace

loss_scale::loss_scale(tracked_state& state, loss_scale_options options, std::string name)
    : options_(options), state_{options.first, 0}, before_(options.first) {
  require_power_of_two("first", options.first);
  require_power_of_two("growth", options.growth);
  require_power_of_two("backoff", options.backoff);
  if (options.growth < 1 || options.backoff >= 1 || options.growth_steps == 0)
    throw exception{errc::invalid_argument,
                    fmt::format("loss_scale_options with growth {} after {} steps and backoff {}: growth is at least "
                                "1, backoff below 1, and the number of steps at least 1",
                                options.growth, options.growth_steps, options.backoff)};
  state.track(std::move(name), state_);
}

bool loss_scale::update(std::span<const float> gradient) {
  return update_with(is_finite(gradient));
}

bool loss_scale::update_with(bool is_finite) {
  before_ = state_[0];
  if (!is_finite) {
    state_[0] = std::max(state_[0] * options_.backoff, static_cast<double>(FLT_MIN));
    state_[1] = 0;
    return false;
  }
  if (++state_[1] >= static_cast<double>(options_.growth_steps)) {
    state_[0] = std::min(state_[0] * options_.growth, std::ldexp(1.0, FLT_MAX_EXP - 1));
    state_[1] = 0;
  }
  return true;
}

} // namespace troupe::training
