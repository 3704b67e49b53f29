// Requests of users and nodes to a run, and the limit of its wait for workers.
#include <troupe/actors/decisions/run_coordinator.hpp>

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace troupe::actors {

using namespace run_phase;

run_actions run_coordinator::on_capacity() {
  auto actions = attempt_.on_capacity();
  return is<running>() ? std::move(actions) : run_actions{};
}

run_actions run_coordinator::on_node_leaving(std::uint32_t node, bool capacity_elsewhere) {
  return goes_on() ? end_or_restart_if_stuck(attempt_.on_node_leaving(node, capacity_elsewhere)) : run_actions{};
}

run_actions run_coordinator::on_drain_timeout() {
  return goes_on() ? attempt_.on_drain_timeout() : run_actions{};
}

run_actions run_coordinator::on_node_resumed(std::uint32_t node) {
  return goes_on() ? end_or_restart_if_stuck(attempt_.on_node_resumed(node)) : run_actions{};
}

run_actions run_coordinator::on_resize(std::uint32_t workers_wanted) {
  if ((!goes_on() && !starting()) || workers_wanted == 0)
    return {};
  if (has_own_loop())
    return {{warn{}, "the training function has a custom loop, which no worker can join: stop the run, and resume it "
                     "with another number of workers"}};
  attempt_.course().workers = workers_wanted;
  return end_or_restart_if_stuck(attempt_.resize());
}

run_actions run_coordinator::on_pause() {
  if ((!goes_on() && !starting()) || attempt_.course().is_ending())
    return {};
  if (has_own_loop())
    return {{warn{}, "the training function has a custom loop, which cannot be paused: stop the run, and resume it"}};
  return attempt_.pause();
}

run_actions run_coordinator::on_resume() {
  if (!is<running>() || attempt_.course().asked != run_course::request::pause)
    return {};
  return end_or_restart_if_stuck(attempt_.resume());
}

run_actions run_coordinator::on_hold_timeout() {
  const auto* first = attempt_.workers().first<standing::active>();
  if (!held() || attempt_.course().asked != run_course::request::none || first == nullptr)
    return {};
  return fail_run(record(*first, {errc::timed_out, fmt::format("fewer than {} for longer than the limit "
                                                               "(scaling.wait_for_workers): start more caf-nodes and "
                                                               "run it again; it continues from its latest checkpoint",
                                                               count_workers(attempt_.config().workers.min))}),
                  "too few workers for too long");
}

run_actions run_coordinator::on_stop(const stop_request& message) {
  if (over() || is<releasing>())
    return {};
  // A stop never covers up a failure.
  if (is<failing>())
    return message.immediately ? conclude_failure("an immediate stop was asked for") : run_actions{};
  if (message.immediately)
    return conclude_run(run_status::stopped, {errc::stopped, "stopped at once on request"},
                        "an immediate stop was asked for");
  if (starting())
    return conclude_run(run_status::stopped,
                        {errc::stopped, attempt() == 1 ? "stopped on request before the first step"
                                                       : "stopped on request while it was being started again"},
                        "a stop was asked for before training began");
  return attempt_.course().asked == run_course::request::stop ? run_actions{}
                                                              : end_or_restart_if_stuck(attempt_.stop());
}

run_actions run_coordinator::on_checkpoint_request() {
  if (!goes_on() || attempt_.course().asked == run_course::request::stop)
    return {};
  return attempt_.take_checkpoint();
}

} // namespace troupe::actors
