#include <troupe/actors/decisions/hosted_workers.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace troupe::actors {

expected<void> hosted_workers::check_new(const std::vector<worker_launch>& launches) const {
  std::set<worker_id> ids;
  for (const auto& each : launches)
    if (started_.contains(each.worker) || !ids.insert(each.worker).second)
      return fail(errc::already_exists, fmt::format("worker {} has been started before", each.worker));
  return {};
}

void hosted_workers::on_starting(worker_id worker) {
  started_.insert(worker);
  living_.insert(worker);
}

void hosted_workers::on_not_started(worker_id worker) {
  started_.erase(worker);
  living_.erase(worker);
}

bool hosted_workers::on_ended(worker_id worker) {
  living_.erase(worker);
  return stuck_.erase(worker) > 0;
}

bool hosted_workers::kill(worker_id worker, std::string why, time_point now) {
  return living_.contains(worker) && killed_.try_emplace(worker, killing{std::move(why), now}).second;
}

void hosted_workers::kill_all(time_point now) {
  for (auto worker : living_)
    killed_.try_emplace(worker, killing{{}, now});
}

std::vector<worker_id> hosted_workers::take_stuck(time_point now, std::chrono::milliseconds patience,
                                                  const std::set<worker_id>& starting) {
  std::vector<worker_id> result;
  for (const auto& [worker, how] : killed_)
    if (now - how.since >= patience && living_.contains(worker) && !starting.contains(worker) &&
        stuck_.insert(worker).second)
      result.push_back(worker);
  return result;
}

std::string hosted_workers::why_killed(worker_id worker) const {
  const auto found = killed_.find(worker);
  return found == killed_.end() ? std::string{} : found->second.why;
}

std::uint32_t hosted_workers::count_running() const {
  return static_cast<std::uint32_t>(
      std::ranges::count_if(living_, [this](worker_id x) { return !killed_.contains(x); }));
}

std::vector<worker_id> hosted_workers::unreported() const {
  std::vector<worker_id> result;
  std::ranges::set_difference(living_, stuck_, std::back_inserter(result));
  return result;
}

} // namespace troupe::actors
