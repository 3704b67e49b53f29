#include "node/hosted_run.hpp"

#include <ranges>

namespace troupe::actors {

run_claimed hosted_run::claimed() const {
  run_claimed result{what.run, {}};
  for (auto worker : workers.unreported()) {
    auto& beat = result.workers.emplace_back();
    beat.run = what.run;
    beat.worker = worker;
    if (const auto* last = watch.last_beat(worker))
      beat = *last;
  }
  return result;
}

std::set<worker_id> hosted_run::workers_starting() const {
  const auto ids = starting | std::views::keys;
  return {ids.begin(), ids.end()};
}

worker_ended hosted_run::take_end(worker_ended event) {
  watch.remove(event.worker);
  followers.erase(event.worker);
  if (const auto why = workers.why_killed(event.worker); !why.empty())
    event.description = why + "; " + event.description;
  return event;
}

} // namespace troupe::actors
