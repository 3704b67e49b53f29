#include <troupe/training/moving_average.hpp>

#include <algorithm>
#include <cstddef>
#include <fmt/format.h>
#include <utility>

namespace troupe::training {

moving_average::moving_average(tracked_state& state, std::string name, std::span<const float> weights, double decay)
    : weights_(weights), decay_(static_cast<float>(decay)), average_(weights.begin(), weights.end()) {
  if (!(decay >= 0 && decay < 1))
    throw exception{
        errc::invalid_argument,
        fmt::format("the moving average '{}' has a decay of {}: it is at least 0 and below 1", name, decay)};
  state.track(std::move(name), average_);
}

void moving_average::update() noexcept {
  const auto share = 1 - decay_;
  for (std::size_t i = 0; i < average_.size(); ++i)
    average_[i] += share * (weights_[i] - average_[i]);
}

void moving_average::exchange_with(std::span<float> weights) {
  if (weights.data() != weights_.data() || weights.size() != weights_.size())
    throw exception{errc::invalid_argument, "a moving average can be exchanged with its own weights only"};
  std::ranges::swap_ranges(average_, weights);
}

} // namespace troupe::training
