#include "trainer/trainer_state.hpp"

#include <troupe/actors/error_conversion.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

// What users ask of a run under way: to stop, pause, resume, be resized, and how it stands.

namespace troupe::actors {

namespace {

using clock = std::chrono::steady_clock;

} // namespace

caf::result<void> trainer_state::stop(const stop_request& request) {
  if (!audience_.awaits_result())
    return caf::unit;
  // Of a run that ends, only its mirror is waited for.
  if (request.immediately)
    hurry_.request_stop();
  if (is_concluding())
    return caf::unit;
  begin_stop(request);
  return answer_when_kept();
}

void trainer_state::begin_stop(const stop_request& request) {
  if (!coordinator_) {
    // It may be fetching a checkpoint, which is not wanted any more.
    hurry_.request_stop();
    return conclude_run(run_status::stopped, {errc::stopped, "stopped on request before the first step"});
  }
  act(coordinator_->on_stop(request));
  tell_whom_a_stop_waits_for();
}

void trainer_state::tell_whom_a_stop_waits_for() {
  if (!coordinator_ || is_concluding())
    return;
  const auto silent =
      coordinator_->stop_waits_for(clock::now(), [this](std::uint32_t node) { return nodes_->name_of(node); });
  if (!silent.empty())
    notify(severity::warning,
           fmt::format("stopping after this step; waiting for {}. Press Ctrl-C again to stop immediately.", silent));
}

caf::result<void> trainer_state::resize(const resize_request& request) {
  if (request.workers == 0 || request.workers > config_.scaling.shards) {
    auto text = fmt::format("a run cannot have {} workers: from 1 to {}, its number of shards", request.workers,
                            config_.scaling.shards);
    notify(severity::warning, text);
    return to_caf({errc::invalid_argument, std::move(text)});
  }
  // Later placements use the new size.
  const auto& configured = config_.scaling.num_workers;
  wanted_workers_ = configured.is_elastic() ? worker_range{std::min(configured.min, request.workers), request.workers}
                                            : worker_range{request.workers};
  if (nodes_)
    nodes_->roster().resize_run(wanted_workers_);
  if (!coordinator_ || is_concluding())
    return caf::unit;
  auto granted =
      do_or_refuse(coordinator_->on_resize(request.workers), fmt::format("have {} workers", request.workers));
  place_again();
  return granted;
}

caf::result<void> trainer_state::grant(actors::run_actions (run_coordinator::*decide)(), std::string_view what) {
  if (!coordinator_ || is_concluding()) {
    auto text = fmt::format("cannot {}: {}", what, coordinator_ ? "the run is ending" : "the run has not begun");
    notify(severity::warning, text);
    return to_caf({errc::invalid_argument, std::move(text)});
  }
  return do_or_refuse(((*coordinator_).*decide)(), what);
}

caf::result<void> trainer_state::do_or_refuse(actors::run_actions actions, std::string_view what) {
  auto refusal = std::optional<std::string>{};
  if (actions.size() == 1 && std::holds_alternative<warn>(actions.front().what))
    refusal = actions.front().why;
  else
    record_event({{"event", "request"}, {"what", what}});
  act(std::move(actions));
  if (refusal)
    return to_caf({errc::invalid_argument, std::move(*refusal)});
  return answer_when_kept();
}

caf::result<void> trainer_state::answer_when_kept() {
  if (!keeps_journal() || is_concluding())
    return caf::unit;
  auto promise = make_response_promise<void>();
  journal_.wishes.emplace_back(journal_.gate.latest_number(), promise);
  answer_wishes();
  return promise;
}

void trainer_state::answer_wishes() {
  for (; !journal_.wishes.empty(); journal_.wishes.pop_front()) {
    auto& [number, promise] = journal_.wishes.front();
    if (!is_concluding() && !journal_.gate.is_kept(number))
      return;
    promise.deliver();
  }
}

run_condition trainer_state::condition() const {
  run_condition result;
  result.wanted = wanted_workers_;
  if (!coordinator_) {
    result.activity = is_concluding() ? run_activity::ending : run_activity::starting;
    return result;
  }
  result.activity = activity();
  result.generation = coordinator_->generation();
  result.attempt = coordinator_->attempt();
  result.furthest = coordinator_->furthest();
  for (const auto& place : layout_.places())
    result.workers.push_back(record_[place.worker]);
  const auto& failures = coordinator_->failures();
  result.failures = static_cast<std::uint64_t>(std::ranges::count(failures, false, &failure_record::consequence));
  if (!failures.empty())
    result.last_failure = failures.back().reason.message;
  return result;
}

run_activity trainer_state::activity() const {
  const auto asked = coordinator_->asked();
  if (is_concluding() || coordinator_->over() || coordinator_->somebody_has_finished())
    return run_activity::ending;
  if (asked == run_course::request::stop)
    return run_activity::stopping;
  if (!is<trainer_phase::running>() || coordinator_->starting())
    return run_activity::starting;
  if (!coordinator_->goes_on())
    return run_activity::ending;
  if (asked == run_course::request::pause)
    return coordinator_->held() ? run_activity::paused : run_activity::pausing;
  return coordinator_->held() || coordinator_->awaits_answers() ? run_activity::held : run_activity::running;
}

} // namespace troupe::actors
