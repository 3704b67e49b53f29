#include <troupe/training/plateau.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <utility>

namespace troupe::training {

plateau::plateau(tracked_state& state, plateau_options options, std::string name)
    : options_(options),
      state_{1, (options.is == better::lower ? 1 : -1) * std::numeric_limits<double>::infinity(), 0, 0} {
  if (!(options.factor > 0 && options.factor < 1))
    throw exception{errc::invalid_argument,
                    fmt::format("plateau_options.factor is {}: it lies between 0 and 1", options.factor)};
  state.track(std::move(name), state_);
}

bool plateau::is_better(double metric) const noexcept {
  const auto best = state_[1];
  return options_.is == better::lower ? metric < best * (1 - options_.threshold)
                                      : metric > best * (1 + options_.threshold);
}

bool plateau::observe(double metric) {
  auto& factor = state_[0];
  auto& best = state_[1];
  auto& without = state_[2];
  auto& cooling = state_[3];
  if (is_better(metric)) {
    best = metric;
    without = 0;
  } else {
    ++without;
  }
  if (cooling > 0) {
    --cooling;
    without = 0;
  }
  if (without <= static_cast<double>(options_.patience))
    return false;
  without = 0;
  cooling = static_cast<double>(options_.cooldown);
  return std::exchange(factor, std::max(factor * options_.factor, options_.smallest)) > factor;
}

} // namespace troupe::training
