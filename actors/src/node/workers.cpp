#include "node/node_actor_state.hpp"

#include "down.hpp"

#include <troupe/actors/error_conversion.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <caf/actor_system.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

// The workers of a node: how they start, join, are watched and end.

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

/// A killed process that lives longer than this is reported as lost.
constexpr auto kill_patience = 2s;

} // namespace

caf::result<void> node_actor_state::keep(const keep_processes& request, const process_keeper& keeper) {
  auto* run = runs_.find(request.run);
  if (run == nullptr)
    return to_caf(unknown_run(request.run));
  if (auto may = check_command(run->what, "keep_processes", request.secret, request.claim); !may)
    return refuse(may.error());
  run->group = request.group;
  if (!keepers_.emplace(request.group, keeper).second)
    return caf::unit;
  when_down(keeper, [self = caf::actor_cast<caf::weak_actor_ptr>(ctrl()), group = request.group](down_cause) {
    if (auto strong = self.lock())
      caf::anon_send(caf::actor_cast<node_interface>(strong), keeper_down{group});
  });
  return caf::unit;
}

void node_actor_state::end_group(const std::string& group) {
  keepers_.erase(group);
  for (auto& [id, run] : runs_)
    if (run.group == group)
      run.group.clear();
  launcher_->end_group(group);
}

void node_actor_state::make_room_for(const hosted_run& run) {
  for (const auto& [group, count] : launcher_->end_waiting_but(run.group)) {
    log(fmt::format("run {} starts workers: {} processes that waited for another run of their driver end",
                    run.what.run_name, count));
    if (const auto keeper = keepers_.find(group); keeper != keepers_.end())
      send(keeper->second, processes_ended{config_.address, static_cast<std::uint32_t>(count), run.what.run_name});
  }
}

caf::result<workers_started> node_actor_state::start(const start_workers& request) {
  auto* run = runs_.find(request.run);
  if (run == nullptr)
    return to_caf(unknown_run(request.run));
  if (auto may = check_command(run->what, "start_workers", request.secret, request.claim); !may)
    return refuse(may.error());
  // The driver may ask again after a lost connection.
  const auto is_starting = [&](const worker_launch& x) { return run->starting.contains(x.worker); };
  if (const auto known = std::ranges::find_if(request.workers, is_starting); known != request.workers.end())
    return answer_of(*run->starting[known->worker]);
  if (auto is_new = run->workers.check_new(request.workers); !is_new)
    return to_caf(is_new.error());
  if (request.workers.empty())
    return workers_started{request.run, {}};
  auto launches = resources_.take(*run, request, clock::now());
  if (!launches)
    return to_caf(launches.error());
  auto order = std::make_shared<start_order>(*launches);
  const auto answer = answer_of(*order);
  run->ended_at.reset();
  make_room_for(*run);
  for (auto& each : *launches) {
    each.group = run->group;
    run->workers.on_starting(each.worker);
    run->starting.emplace(each.worker, order);
    launcher_->start(each);
  }
  return answer;
}

start_order::promise node_actor_state::answer_of(start_order& order) {
  auto promise = make_response_promise<workers_started>();
  order.add(promise);
  return promise;
}

void node_actor_state::note_start(const launch_outcome& event) {
  auto* run = runs_.find_any(event.run);
  if (run == nullptr)
    return;
  auto order = std::move(run->starting.extract(event.worker).mapped());
  if (event.pid) {
    ++totals_.workers_started;
    run->pids.emplace(event.worker, *event.pid);
    log(fmt::format("worker {} of run {} is process {}{}", event.worker, run->what.run_name, *event.pid,
                    on_devices(order->launch_of(event.worker).devices)));
    if (run->ending || run->workers.was_killed(event.worker))
      launcher_->kill(event.run, event.worker);
  } else {
    run->workers.on_not_started(event.worker);
    note_last(*run);
    resources_.give_back(*run, event.worker, clock::now());
  }
  order->note(event);
  forget_if_ended(event.run);
}

caf::result<join_challenge> node_actor_state::challenge(const join_request& request) {
  auto* run = runs_.find(request.run);
  if (run == nullptr)
    return to_caf(unknown_run(request.run));
  if (!run->workers.was_started(request.worker))
    return to_caf({errc::stale_generation, fmt::format("this node has not started worker {}", request.worker)});
  return run->handshake.challenge(request, serialization::random_hex(16));
}

caf::result<run_control, collectives_actor, checkpoint_store> node_actor_state::admit(const join_proof& proof,
                                                                                      const driver_follower& worker) {
  auto* run = runs_.find(proof.run);
  if (run == nullptr)
    return to_caf(unknown_run(proof.run));
  if (auto known = run->handshake.verify(proof); !known)
    return refuse(known.error());
  run->watch.add(proof.worker, clock::now());
  run->followers[proof.worker] = worker;
  return {run->driver.control, run->driver.collectives, run->driver.store};
}

void node_actor_state::take_beat(const worker_beat& beat) {
  auto* run = runs_.find(beat.run);
  if (run == nullptr || !run->workers.lives(beat.worker))
    return;
  run->watch.heard(beat, clock::now());
}

void node_actor_state::judge_silent_workers(hosted_run& run) {
  const auto sample = [&](worker_id worker) -> expected<worker_watch::samples> {
    TROUPE_TRY(auto process, launcher_->sample(run.what.run, worker));
    TROUPE_TRY(auto node, launcher_->sample_node());
    return worker_watch::samples{std::move(process), std::move(node)};
  };
  const auto findings = run.watch.judge(clock::now(), sample);
  totals_.late_heartbeats += findings.size();
  for (const auto& [worker, text] : findings)
    log(fmt::format("worker {} of run {} {}", worker, run.what.run_name, text));
}

caf::result<void> node_actor_state::kill(const kill_worker& request) {
  auto* run = runs_.find(request.run);
  if (run == nullptr)
    return caf::unit;
  if (auto may = check_command(run->what, "kill_worker", request.secret, request.claim); !may)
    return refuse(may.error());
  if (!run->workers.kill(request.worker, request.reason, clock::now()))
    return caf::unit;
  log(fmt::format("worker {} of run {} is killed: {}", request.worker, run->what.run_name, request.reason));
  run->watch.expect_end(request.worker);
  launcher_->kill(request.run, request.worker);
  return caf::unit;
}

void node_actor_state::kill_all(hosted_run& run) {
  if (!run.ending)
    run.ending.emplace();
  run.workers.kill_all(clock::now());
  launcher_->kill(run.what.run);
}

void node_actor_state::report_stuck_workers(hosted_run& run) {
  const auto stuck = run.workers.take_stuck(clock::now(), kill_patience, run.workers_starting());
  for (auto worker : stuck) {
    const auto sample = launcher_->sample(run.what.run, worker);
    const auto state = sample ? describe_unkillable(*sample) : sample.error().message;
    report_end(run, {run.what.run, worker, 128 + SIGKILL, "it was killed, and is not dead: " + state, {}});
  }
  if (!stuck.empty())
    run_delayed(0s, [this, id = run.what.run] { forget_if_ended(id); });
}

void node_actor_state::worker_has_ended(worker_ended event) {
  auto* run = runs_.find_any(event.run);
  if (run == nullptr)
    return resources_.give_back(event.run, event.worker);
  const auto id = event.run;
  ++totals_.workers_ended;
  run->pids.erase(event.worker);
  const auto was_reported = run->workers.on_ended(event.worker);
  resources_.give_back(*run, event.worker, clock::now());
  note_last(*run);
  if (was_reported)
    log(fmt::format("worker {} of run {} has ended at last", event.worker, run->what.run_name));
  else
    report_end(*run, std::move(event));
  forget_if_ended(id);
}

void node_actor_state::report_end(hosted_run& run, worker_ended event) {
  event = run.take_end(std::move(event));
  log(fmt::format("worker {} of run {} ended: {}", event.worker, run.what.run_name, event.description));
  run.news.send(*this, std::move(event));
}

void node_actor_state::send_output(const run_id& id) {
  auto* run = runs_.find_any(id);
  if (run == nullptr)
    return output_->forget(id);
  if (run->sends_output)
    return;
  auto batch = output_->take(id);
  if (!batch)
    return forget_if_ended(id);
  run->sends_output = true;
  auto go_on = [this, id] {
    if (auto* found = runs_.find_any(id)) {
      found->sends_output = false;
      send_output(id);
    }
  };
  run->news.request<void>(
      *this, go_on, [go_on](const caf::error&) { go_on(); }, std::move(*batch));
}

} // namespace troupe::actors
