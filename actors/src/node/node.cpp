#include "node/node_actor_state.hpp"

#include <troupe/actors/error_conversion.hpp>

#include <caf/actor_system.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

/// How long a run that has ended is kept for the sake of its last lines.
constexpr auto last_lines_patience = 1s;

/// How often a node reports to the drivers, and looks for silent workers.
constexpr auto beat_interval = 200ms;

} // namespace

node_actor_state::node_actor_state(caf::actor_config& cfg, node_config config, const launcher_factory& make_launcher)
    : orderly_end(cfg), config_(std::move(config)), resources_(config_) {
  auto self = caf::actor_cast<caf::weak_actor_ptr>(ctrl());
  auto tell = [self](auto event) {
    if (auto strong = self.lock())
      caf::anon_send(caf::actor_cast<node_interface>(strong), std::move(event));
  };
  launcher_ = make_launcher({[tell](launch_outcome event) { tell(std::move(event)); },
                             [tell, output = output_](worker_output event) {
                               auto run = event.run;
                               if (output->add(std::move(event)))
                                 tell(output_waiting{std::move(run)});
                             },
                             [tell](worker_ended event) { tell(process_ended{std::move(event)}); }});
}

node_actor_state::behavior_type node_actor_state::make_behavior() {
  await_beat();
  return {
      [this](const offer_request& request) { return offer(request); },
      [this](const lease_request& request) { return lease(request); },
      [this](const open_run& request, const run_control& control, const collectives_actor& collectives,
             const checkpoint_store& store) {
        return open(request, {control, collectives, store});
      },
      [this](const claim_run& request) { return claim(request); },
      [this](const adopt_run& request, const run_control& control, const collectives_actor& collectives,
             const checkpoint_store& store) {
        return adopt(request, {control, collectives, store});
      },
      [this](const start_workers& request) { return start(request); },
      [this](const keep_processes& request, const process_keeper& keeper) { return keep(request, keeper); },
      [this](const kill_worker& request) { return kill(request); },
      [this](const worker_beat& beat) { take_beat(beat); },
      [this](const drain_request& request) { return drain(request); },
      [this](const node_question&) { return report(); },
      [this](const drain_node& request) {
        take_no_workers(std::chrono::milliseconds{request.patience_ms});
        return report();
      },
      [this](const resume_node&) {
        take_workers();
        return report();
      },
      [this](const end_run& request) { return end(request); },
      [this](const join_request& request) { return challenge(request); },
      [this](const join_proof& proof, const driver_follower& worker) { return admit(proof, worker); },
      [this](const launch_outcome& event) { note_start(event); },
      [this](process_ended& event) { worker_has_ended(std::move(event.what)); },
      [this](const program_searched& event) {
        searching_.erase(event.number);
        finish_search(event);
      },
      [this](const output_waiting& event) { send_output(event.run); },
      [this](const driver_down& event) { driver_is_gone(event); },
      [this](const keeper_down& event) { end_group(event.group); },
  };
}

void node_actor_state::let_go() {
  // Kills and reaps the remaining processes.
  launcher_.reset();
  opening_.clear();
  runs_.clear();
  if (draining_)
    draining_->answer();
}

void node_actor_state::log(const std::string& line) const {
  if (config_.log)
    config_.log(line);
}

caf::error node_actor_state::refuse(const error& why) {
  if (why.code == errc::wrong_secret)
    if (const auto line = refusals_.add(why.message, clock::now()))
      log(*line);
  return to_caf(why);
}

void node_actor_state::await_beat() {
  run_delayed(beat_interval, [this] { beat(); });
}

void node_actor_state::beat() {
  for (auto& [id, run] : runs_) {
    report_stuck_workers(run);
    if (run.ending)
      continue;
    judge_silent_workers(run);
    // Without a driver, keep the last heartbeats.
    if (!run.alone_since)
      send(run.driver.control, run.watch.take_report(id));
  }
  if (config_.publish)
    config_.publish(figures());
  await_beat();
}

node_figures node_actor_state::figures() {
  auto result = totals_;
  result.offered = config_.capacity;
  result.used_gpus = resources_.used_gpus();
  result.is_draining = draining_.has_value();
  for (const auto& [id, run] : runs_) {
    node_figures::run here{run.what.run_name, {}, static_cast<std::uint32_t>(run.watch.silent()), !run.alone_since};
    for (const auto& [worker, pid] : run.pids)
      here.pids.push_back(pid);
    result.runs.push_back(std::move(here));
  }
  return result;
}

node_report node_actor_state::report() {
  node_report result;
  result.host = config_.host;
  result.version = config_.version;
  result.pid = static_cast<std::uint32_t>(::getpid());
  result.phase = draining_ ? node_phase::leaving : drained_ ? node_phase::drained : node_phase::available;
  result.offered = config_.capacity;
  result.free = resources_.free(clock::now());
  result.labels = config_.labels;
  for (const auto& [id, run] : runs_)
    result.runs.push_back({id.value, run.what.run_name, static_cast<std::uint32_t>(run.workers.unreported().size())});
  if (config_.certificate_expires)
    result.certificate_expires = config_.certificate_expires();
  return result;
}

caf::result<void> node_actor_state::drain(const drain_request& request) {
  if (!draining_) {
    draining_.emplace(clock::now() + std::chrono::milliseconds{request.grace_ms});
    for (auto& [id, run] : runs_)
      send(run.driver.control, node_leaving{id, request.grace_ms});
    run_delayed(draining_->time_left(clock::now()), [this] { draining_->answer(); });
  }
  auto promise = make_response_promise<void>();
  draining_->add(promise);
  answer_if_drained();
  return promise;
}

void node_actor_state::answer_if_drained() {
  if (draining_ && std::ranges::all_of(runs_, [this](const auto& x) {
        return x.second.workers.all_ended_or_stuck() && has_told(x.second);
      }))
    draining_->answer();
}

void node_actor_state::take_no_workers(std::chrono::milliseconds patience) {
  if (std::exchange(drained_, patience) != patience)
    for (auto& [id, run] : runs_)
      send(run.driver.control, node_drained{id, static_cast<std::uint64_t>(patience.count())});
  // No process stays here for a later run.
  while (!keepers_.empty())
    end_group(std::string{keepers_.begin()->first});
}

void node_actor_state::take_workers() {
  if (std::exchange(drained_, std::nullopt))
    for (auto& [id, run] : runs_)
      send(run.driver.control, node_resumed{id});
}

caf::result<void> node_actor_state::end(const end_run& request) {
  auto* run = runs_.find_any(request.run);
  if (run == nullptr) {
    // It may have a lease, or wait for one, or for its program.
    if (auto opening = opening_.find(request.run); opening != opening_.end()) {
      if (auto may = check_command(opening->second.what, "end_run", request.secret, request.claim); !may)
        return refuse(may.error());
      const auto ended = std::move(opening_.extract(opening).mapped());
      for (auto each : ended.waiting)
        each.deliver(to_caf({errc::stale_generation, "the run has ended"}));
    }
    resources_.end(request.run);
    return caf::unit;
  }
  if (auto may = check_command(run->what, "end_run", request.secret, request.claim); !may)
    return refuse(may.error());
  kill_all(*run);
  auto promise = make_response_promise<void>();
  run->ending->push_back(promise);
  forget_if_ended(request.run);
  return promise;
}

void node_actor_state::forget_if_ended(const run_id& id) {
  if (const auto* run = runs_.find_any(id); run != nullptr && run->has_ended() && has_told(*run))
    forget(id);
  answer_if_drained();
}

void node_actor_state::note_last(hosted_run& run) {
  if (!run.workers.is_empty())
    return;
  run.ended_at = clock::now();
  run_delayed(last_lines_patience, [this, id = run.what.run] { forget_if_ended(id); });
}

bool node_actor_state::has_told(const hosted_run& run) const {
  return run.alone_since || (!run.sends_output && output_->empty(run.what.run)) ||
         (run.ended_at && clock::now() - *run.ended_at >= last_lines_patience);
}

void node_actor_state::forget(run_id id) {
  auto run = runs_.take(id);
  if (!run)
    return;
  launcher_->close(id);
  resources_.end(id);
  output_->forget(id);
  for (auto& promise : run->ending.value_or(std::vector<caf::typed_response_promise<void>>{}))
    promise.deliver();
  log(fmt::format("run {} ({}) has ended here", run->what.run_name, id));
}

node_actor spawn_node(caf::actor_system& system, node_config config, const launcher_factory& make_launcher) {
  return caf::actor_cast<node_actor>(system.spawn<node_actor_state>(std::move(config), make_launcher));
}

} // namespace troupe::actors
