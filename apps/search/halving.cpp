#include <search/halving.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace search {

using troupe::errc;
using troupe::fail;

troupe::expected<std::vector<std::uint64_t>> make_rungs(std::uint64_t first, std::uint64_t last, std::uint32_t factor) {
  if (factor < 2)
    return fail(errc::invalid_argument, fmt::format("the factor between rungs is {}: at least 2", factor));
  if (first == 0 || first > last)
    return fail(
        errc::invalid_argument,
        fmt::format("the first rung is step {} of {}: it is at least 1, and at most the last step", first, last));
  std::vector<std::uint64_t> result;
  for (auto steps = first; steps < last; steps *= factor) {
    result.push_back(steps);
    if (steps > last / factor)
      break;
  }
  result.push_back(last);
  return result;
}

successive_halving::successive_halving(std::size_t trials, std::vector<std::uint64_t> rungs, std::uint32_t factor)
    : rungs_(std::move(rungs)), factor_(factor), contenders_(trials) {
  std::iota(contenders_.begin(), contenders_.end(), std::size_t{0});
}

std::vector<std::size_t> successive_halving::due() const {
  std::vector<std::size_t> result;
  if (!is_over())
    std::ranges::copy_if(contenders_, std::back_inserter(result),
                         [this](std::size_t trial) { return !losses_.contains(trial); });
  std::ranges::sort(result);
  return result;
}

troupe::expected<std::optional<rung_decision>> successive_halving::record(std::size_t trial, double loss) {
  if (const auto all = due(); !std::ranges::binary_search(all, trial))
    return fail(errc::invalid_argument, fmt::format("trial {} is not due at this rung", trial));
  losses_.emplace(trial, loss);
  if (losses_.size() < contenders_.size())
    return std::nullopt;
  return decide();
}

std::optional<std::size_t> successive_halving::winner() const {
  return is_over() && !contenders_.empty() ? std::optional{contenders_.front()} : std::nullopt;
}

rung_decision successive_halving::decide() {
  auto order = std::exchange(contenders_, {});
  const auto losses = std::exchange(losses_, {});
  std::ranges::sort(order, {}, [&](std::size_t trial) {
    const auto loss = losses.at(trial);
    return std::tuple{!std::isfinite(loss), std::isfinite(loss) ? loss : 0.0, trial};
  });
  const auto finite = std::ranges::count_if(order, [&](std::size_t trial) { return std::isfinite(losses.at(trial)); });
  // The winner is the first of those that have come to the last rung.
  const auto kept =
      std::min<std::ptrdiff_t>(finite, static_cast<std::ptrdiff_t>((order.size() + factor_ - 1) / factor_));
  rung_decision result;
  result.steps = rungs_.at(rung_++);
  result.kept.assign(order.begin(), order.begin() + kept);
  result.dropped.assign(order.begin() + kept, order.end());
  if (rung_ == rungs_.size() && !result.kept.empty()) {
    result.dropped.insert(result.dropped.begin(), result.kept.begin() + 1, result.kept.end());
    result.kept.resize(1);
  }
  contenders_ = result.kept;
  return result;
}

} // namespace search
