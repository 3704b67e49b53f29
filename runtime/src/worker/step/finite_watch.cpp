#include "worker/step/finite_watch.hpp"

#include <cmath>
#include <fmt/format.h>
#include <utility>

namespace troupe::runtime {

void finite_watch::begin() noexcept {
  for (auto& each : states_)
    each.contributed.reset();
}

void finite_watch::note(step_id step, shard_id shard, std::size_t metric, double value) {
  auto& contributed = states_[metric].contributed;
  if (!contributed)
    contributed = not_finite_row{step, shard, metrics_[metric], value};
}

std::vector<not_finite_row> finite_watch::take() {
  std::vector<not_finite_row> result;
  for (auto& each : states_) {
    auto row = std::exchange(each.contributed, std::nullopt);
    if (std::exchange(each.contributes_finite, !row) && row)
      result.push_back(std::move(*row));
  }
  return result;
}

finite_watch::finding finite_watch::check(step_id step, std::span<const double> means) {
  finding result;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const auto is_first = std::exchange(states_[i].was_finite, std::isfinite(means[i]));
    if (std::isfinite(means[i]))
      continue;
    if (is_first)
      result.first.push_back({step, {}, metrics_[i], means[i]});
    result.text += fmt::format("{}{} is {}", result.text.empty() ? "" : ", ", metrics_[i], means[i]);
  }
  return result;
}

} // namespace troupe::runtime
