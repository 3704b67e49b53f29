#include <troupe/actors/decisions/device_ledger.hpp>

#include <troupe/actors/decisions/plural.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace troupe::actors {

namespace {

/// Fractions such as a third do not add up exactly.
constexpr double tolerance = 1e-6;

} // namespace

std::uint32_t workers_on_gpus(double each, std::uint32_t gpus) noexcept {
  if (each < 1)
    return gpus * static_cast<std::uint32_t>(std::floor(1 / each + tolerance));
  return gpus / static_cast<std::uint32_t>(each);
}

std::uint32_t gpus_for_workers(double each, std::uint32_t workers) noexcept {
  if (each < 1) {
    auto sharing = workers_on_gpus(each, 1);
    return (workers + sharing - 1) / sharing;
  }
  return workers * static_cast<std::uint32_t>(each);
}

device_ledger::load device_ledger::load_of(std::size_t device, const run_id& run) const {
  load result;
  for (const auto& [who, what] : holdings_)
    if (std::ranges::find(what.devices, device) != what.devices.end()) {
      result.taken += std::min(what.gpus, 1.0);
      result.is_foreign = result.is_foreign || who.first != run;
    }
  return result;
}

expected<std::vector<std::string>> device_ledger::take(const run_id& run, worker_id worker, double gpus) {
  auto who = std::pair{run, worker};
  if (!holdings_.contains(who) && gpus > 0) {
    std::vector<std::pair<double, std::size_t>> capacity;
    for (std::size_t i = 0; i < devices_.size(); ++i)
      if (auto now = load_of(i, run); !now.is_foreign && now.taken + std::min(gpus, 1.0) <= 1 + tolerance)
        capacity.emplace_back(now.taken, i);
    auto count = gpus < 1 ? std::size_t{1} : static_cast<std::size_t>(gpus);
    if (capacity.size() < count)
      return fail(lack(run, gpus));
    std::ranges::sort(capacity);
    holding mine;
    mine.gpus = gpus;
    for (std::size_t i = 0; i < count; ++i)
      mine.devices.push_back(capacity[i].second);
    holdings_.emplace(who, std::move(mine));
  }
  std::vector<std::string> result;
  if (auto found = holdings_.find(who); found != holdings_.end())
    for (auto device : found->second.devices)
      result.push_back(devices_[device]);
  return result;
}

error device_ledger::lack(const run_id& run, double gpus) const {
  auto text = std::string{};
  for (std::size_t i = 0; i < devices_.size(); ++i) {
    auto holders = std::string{};
    for (const auto& [who, what] : holdings_)
      if (std::ranges::find(what.devices, i) != what.devices.end())
        holders += fmt::format("{}worker {}{}", holders.empty() ? "" : ", ", who.second,
                               who.first == run ? "" : " of another run");
    text += fmt::format("{}{}: {}", i > 0 ? "; " : "", devices_[i], holders.empty() ? "nobody" : holders);
  }
  return {errc::unsatisfiable, fmt::format("no capacity for a worker with {} on this node's {}{}", plural(gpus, "GPU"),
                                           plural(size(), "GPU"), text.empty() ? "" : " (" + text + ")")};
}

void device_ledger::give_back(const run_id& run, worker_id worker) {
  holdings_.erase({run, worker});
}

std::uint32_t device_ledger::open_to(const run_id& run) const {
  std::uint32_t result = 0;
  for (std::size_t i = 0; i < devices_.size(); ++i)
    if (!load_of(i, run).is_foreign)
      ++result;
  return result;
}

} // namespace troupe::actors
