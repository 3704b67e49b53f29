#include "node/start_order.hpp"

#include <troupe/actors/error_conversion.hpp>

#include <algorithm>

namespace troupe::actors {

void start_order::note(const launch_outcome& outcome) {
  if (outcome.pid)
    pids_.emplace(outcome.worker, *outcome.pid);
  else if (reason_.code == errc::none)
    reason_ = outcome.pid.error();
  if (--left_ == 0)
    answer();
}

const launch_request& start_order::launch_of(worker_id worker) const {
  return *std::ranges::find(launches_, worker, &launch_request::worker);
}

void start_order::answer() {
  workers_started result{launches_.front().run, {}};
  for (const auto& each : launches_)
    if (auto pid = pids_.find(each.worker); pid != pids_.end())
      result.pids.push_back(pid->second);
  for (auto& answer : answers_)
    if (reason_.code != errc::none)
      answer.deliver(to_caf(reason_));
    else
      answer.deliver(result);
}

} // namespace troupe::actors
