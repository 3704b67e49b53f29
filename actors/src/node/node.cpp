#include <troupe/actors/node.hpp>

#include "down.hpp"
#include "local_messages.hpp"
#include "node/draining.hpp"
#include "node/hosted_run.hpp"
#include "node/launches.hpp"
#include "node/node_resources.hpp"
#include "node/run_table.hpp"
#include "node/shared_output.hpp"
#include "orderly_end.hpp"

#include <troupe/actors/decisions/refusal_log.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <optional>
#include <unistd.h>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

/// How long a run that has ended is kept for the sake of its last lines.
constexpr auto last_lines_patience = 1s;

/// How often a node reports to the drivers, and looks for silent workers.
constexpr auto beat_interval = 200ms;

/// A killed process that lives longer than this is reported as lost.
constexpr auto kill_patience = 2s;

class node_state : public orderly_end<node_interface::base> {
 public:
  node_state(caf::actor_config& cfg, node_config config, const launcher_factory& make_launcher)
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

  behavior_type make_behavior() override {
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
        [this](const kill_worker& request) { return kill(request); },
        [this](const worker_beat& beat) { take_beat(beat); },
        [this](const drain_request& request) { return drain(request); },
        [this](const drain_node& request) { take_no_workers(std::chrono::milliseconds{request.patience_ms}); },
        [this](const resume_node&) { take_workers(); },
        [this](const end_run& request) { return end(request); },
        [this](const join_request& request) { return challenge(request); },
        [this](const join_proof& proof, const driver_follower& worker) { return admit(proof, worker); },
        [this](const launch_outcome& event) { note_start(event); },
        [this](process_ended& event) { worker_has_ended(std::move(event.what)); },
        [this](const output_waiting& event) { send_output(event.run); },
        [this](const driver_down& event) { driver_is_gone(event); },
    };
  }

  const char* name() const override { return "troupe.node"; }

 private:
  void let_go() override {
    // Kills and reaps the remaining processes.
    launcher_.reset();
    runs_.clear();
    if (draining_)
      draining_->answer();
  }

  void log(const std::string& line) const {
    if (config_.log)
      config_.log(line);
  }

  /// Refuses a peer. Log lines are limited, because a peer may repeat its request at will.
  caf::error refuse(const error& why) {
    if (why.code == errc::wrong_secret)
      if (const auto line = refusals_.add(why.message, clock::now()))
        log(*line);
    return to_caf(why);
  }

  caf::result<node_offer> offer(const offer_request& request) {
    if (request.protocol != protocol_version)
      return to_caf({errc::unsupported_version,
                     fmt::format("this caf-node speaks version {} of the protocol, the driver version {}: install the "
                                 "same Troupe on all hosts",
                                 protocol_version, request.protocol)});
    if (drained_)
      return to_caf({errc::timed_out, "it is drained, and takes no workers until `troupe resume`"});
    return resources_.offer(request, runs_.find_orphan(request.predecessor), clock::now());
  }

  caf::result<void> lease(const lease_request& request) {
    if (auto granted = resources_.lease(request, runs_.find_orphan(request.predecessor), clock::now()); !granted)
      return to_caf(granted.error());
    return caf::unit;
  }

  caf::result<run_opened> open(const open_run& request, const driver_handles& driver) {
    // The driver may have lost the answer, and have other handles since.
    if (auto* known = runs_.find(request.run)) {
      if (auto had = have(*known, "open_run", request.secret, request.claim); !had)
        return refuse(had.error());
      if (known->alone_since || known->driver.control != driver.control)
        connect(*known, driver);
      return run_opened{request.run, known->program_path};
    }
    if (runs_.find_any(request.run) != nullptr)
      return to_caf({errc::timed_out, "what this node had of the run is still ending"});
    auto promise = make_response_promise<run_opened>();
    auto begin = [this, promise, request, driver]() mutable {
      if (auto opened = open_now(request, driver))
        promise.deliver(std::move(*opened));
      else
        promise.deliver(to_caf(opened.error()));
    };
    if (const auto* before = runs_.find_orphan(request.predecessor)) {
      log("the driver of run " + before->what.run_name + " was started anew: the workers of the one before end");
      this->request(node_actor{caf::actor_cast<node_actor>(this)}, caf::infinite,
                    end_run{before->what.run, before->what.secret, before->what.claim})
          .then(begin, [promise](const caf::error& reason) mutable { promise.deliver(reason); });
    } else {
      begin();
    }
    return promise;
  }

  expected<run_opened> open_now(const open_run& request, const driver_handles& driver) {
    TROUPE_TRY(auto path, launcher_->open(request));
    auto& run = runs_.add(request, path);
    resources_.open(run);
    connect(run, driver);
    ++totals_.runs_begun;
    log("run " + request.run_name + " (" + request.run.value + ") begins with " + path);
    return run_opened{request.run, std::move(path)};
  }

  /// The driver of a run has these handles from now on.
  void connect(hosted_run& run, const driver_handles& driver) {
    run.driver = driver;
    run.alone_since.reset();
    when_down(driver.control, [self = caf::actor_cast<caf::weak_actor_ptr>(ctrl()), run = run.what.run,
                               connection = run.connection = ++connections_](down_cause why) {
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<node_interface>(strong), driver_down{run, connection, why});
    });
    run.news.connect(driver.control);
    for (const auto& [worker, follower] : run.followers)
      send(follower, driver.control, driver.collectives, driver.store);
    if (draining_)
      send(driver.control, node_leaving{run.what.run, draining_->grace_left(clock::now())});
    else if (drained_)
      send(driver.control, node_drained{run.what.run, static_cast<std::uint64_t>(drained_->count())});
  }

  /// The driver with this claim has the run, unless there is a greater one.
  expected<void> have(hosted_run& run, std::string_view command, const std::string& secret, const run_claim& claim) {
    TROUPE_TRY(check_command(run, command, secret, claim));
    if (claim == run.what.claim)
      return {};
    log("another driver takes run " + run.what.run_name + " over");
    send(run.driver.control, run_superseded{run.what.run});
    // It may still answer what it gets, and the new one would not hear of it.
    run.news.disown();
    run.what.claim = claim;
    // From now on the previous driver is ignored, and the grace period of this one begins.
    run.connection = ++connections_;
    await_driver(run);
    return {};
  }

  template <class Request>
  expected<run_claimed> have_claimed(const Request& request, std::string_view command) {
    auto* run = runs_.find(request.run);
    if (run == nullptr)
      return fail(unknown_run(request.run));
    TROUPE_TRY(have(*run, command, request.secret, request.claim));
    return run->claimed();
  }

  caf::result<run_claimed> claim(const claim_run& request) {
    auto claimed = have_claimed(request, "claim_run");
    if (!claimed)
      return refuse(claimed.error());
    return std::move(*claimed);
  }

  caf::result<run_claimed> adopt(const adopt_run& request, const driver_handles& driver) {
    auto claimed = have_claimed(request, "adopt_run");
    if (!claimed)
      return refuse(claimed.error());
    auto* run = runs_.find(request.run);
    const auto gap = run->alone_since ? clock::now() - *run->alone_since : clock::duration{0};
    log(fmt::format("the driver of run {} is connected again after {:.1f} s", run->what.run_name,
                    std::chrono::duration<double>(gap).count()));
    connect(*run, driver);
    return std::move(*claimed);
  }

  caf::result<workers_started> start(const start_workers& request) {
    auto* run = runs_.find(request.run);
    if (run == nullptr)
      return to_caf(unknown_run(request.run));
    if (auto may = check_command(*run, "start_workers", request.secret, request.claim); !may)
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
    for (const auto& each : *launches) {
      run->workers.on_starting(each.worker);
      run->starting.emplace(each.worker, order);
      launcher_->start(each);
    }
    return answer;
  }

  start_order::promise answer_of(start_order& order) {
    auto promise = make_response_promise<workers_started>();
    order.add(promise);
    return promise;
  }

  void note_start(const launch_outcome& event) {
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

  caf::result<void> end(const end_run& request) {
    auto* run = runs_.find_any(request.run);
    if (run == nullptr) {
      // It may have a lease, or wait for one.
      resources_.end(request.run);
      return caf::unit;
    }
    if (auto may = check_command(*run, "end_run", request.secret, request.claim); !may)
      return refuse(may.error());
    kill_all(*run);
    auto promise = make_response_promise<void>();
    run->ending->push_back(promise);
    forget_if_ended(request.run);
    return promise;
  }

  caf::result<join_challenge> challenge(const join_request& request) {
    auto* run = runs_.find(request.run);
    if (run == nullptr)
      return to_caf(unknown_run(request.run));
    if (!run->workers.was_started(request.worker))
      return to_caf({errc::stale_generation, fmt::format("this node has not started worker {}", request.worker)});
    return run->handshake.challenge(request, serialization::random_hex(16));
  }

  caf::result<run_control, collectives_actor, checkpoint_store> admit(const join_proof& proof,
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

  void await_beat() {
    run_delayed(beat_interval, [this] { beat(); });
  }

  void take_beat(const worker_beat& beat) {
    auto* run = runs_.find(beat.run);
    if (run == nullptr || !run->workers.lives(beat.worker))
      return;
    run->watch.heard(beat, clock::now());
  }

  /// Reports to the drivers, and looks for silent workers.
  void beat() {
    report_status();
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

  [[nodiscard]] node_figures figures() {
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

  void judge_silent_workers(hosted_run& run) {
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

  caf::result<void> kill(const kill_worker& request) {
    auto* run = runs_.find(request.run);
    if (run == nullptr)
      return caf::unit;
    if (auto may = check_command(*run, "kill_worker", request.secret, request.claim); !may)
      return refuse(may.error());
    if (!run->workers.kill(request.worker, request.reason, clock::now()))
      return caf::unit;
    log(fmt::format("worker {} of run {} is killed: {}", request.worker, run->what.run_name, request.reason));
    run->watch.expect_end(request.worker);
    launcher_->kill(request.run, request.worker);
    return caf::unit;
  }

  /// The run ends here.
  void kill_all(hosted_run& run) {
    if (!run.ending)
      run.ending.emplace();
    run.workers.kill_all(clock::now());
    launcher_->kill(run.what.run);
  }

  /// Reports killed processes in uninterruptible sleep as ended, so that nothing waits for them. They keep their GPUs.
  void report_stuck_workers(hosted_run& run) {
    const auto stuck = run.workers.take_stuck(clock::now(), kill_patience, run.workers_starting());
    for (auto worker : stuck) {
      const auto sample = launcher_->sample(run.what.run, worker);
      const auto state = sample ? describe_unkillable(*sample) : sample.error().message;
      report_end(run, {run.what.run, worker, 128 + SIGKILL, "it was killed, and is not dead: " + state, {}});
    }
    if (!stuck.empty())
      run_delayed(0s, [this, id = run.what.run] { forget_if_ended(id); });
  }

  caf::result<void> drain(const drain_request& request) {
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

  /// Unlike `drain`, the node stays.
  void take_no_workers(std::chrono::milliseconds patience) {
    if (std::exchange(drained_, patience) != patience)
      for (auto& [id, run] : runs_)
        send(run.driver.control, node_drained{id, static_cast<std::uint64_t>(patience.count())});
    report_status();
  }

  void take_workers() {
    if (std::exchange(drained_, std::nullopt))
      for (auto& [id, run] : runs_)
        send(run.driver.control, node_resumed{id});
    report_status();
  }

  void report_status() {
    if (!config_.on_status)
      return;
    auto now = node_status{draining_  ? member_phase::leaving
                           : drained_ ? member_phase::drained
                                      : member_phase::available,
                           resources_.free(clock::now()),
                           {}};
    for (const auto& [id, run] : runs_)
      now.runs.push_back({id.value, run.what.run_name, static_cast<std::uint32_t>(run.workers.unreported().size())});
    if (reported_ == now)
      return;
    config_.on_status(now);
    reported_ = std::move(now);
  }

  void answer_if_drained() {
    if (draining_ && std::ranges::all_of(runs_, [this](const auto& x) {
          return x.second.workers.all_ended_or_stuck() && has_told(x.second);
        }))
      draining_->answer();
  }

  void worker_has_ended(worker_ended event) {
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

  void report_end(hosted_run& run, worker_ended event) {
    event = run.take_end(std::move(event));
    log(fmt::format("worker {} of run {} ended: {}", event.worker, run.what.run_name, event.description));
    run.news.send(*this, std::move(event));
  }

  /// Sends one batch at a time. Lines that the driver does not take wait here, or are dropped.
  void send_output(const run_id& id) {
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

  void driver_is_gone(const driver_down& event) {
    auto* run = runs_.find_any(event.run);
    if (run == nullptr || run->connection != event.connection)
      return;
    if (event.why == down_cause::ended || run->what.driver_grace_ms == 0 || run->ending)
      return end_without_driver(*run);
    log(fmt::format("the connection to the driver of run {} is lost: its workers go on, and end if it is not back in "
                    "{:.1f} s",
                    run->what.run_name, static_cast<double>(run->what.driver_grace_ms) / 1000));
    await_driver(*run);
  }

  /// The run continues without a driver, and ends if none connects in time.
  void await_driver(hosted_run& run) {
    run.alone_since = clock::now();
    run_delayed(std::chrono::milliseconds{run.what.driver_grace_ms},
                [this, id = run.what.run, connection = run.connection] {
                  auto* found = runs_.find_any(id);
                  if (found != nullptr && found->connection == connection && found->alone_since)
                    end_without_driver(*found);
                });
  }

  void end_without_driver(hosted_run& run) {
    const auto id = run.what.run;
    if (!run.alone_since)
      run.alone_since = clock::now();
    log("the driver of run " + run.what.run_name + " is gone: its workers end");
    kill_all(run);
    forget_if_ended(id);
  }

  void forget_if_ended(const run_id& id) {
    if (const auto* run = runs_.find_any(id); run != nullptr && run->has_ended() && has_told(*run))
      forget(id);
    answer_if_drained();
  }

  /// After the last process has ended, waits a moment for the run's last output lines.
  void note_last(hosted_run& run) {
    if (!run.workers.is_empty())
      return;
    run.ended_at = clock::now();
    run_delayed(last_lines_patience, [this, id = run.what.run] { forget_if_ended(id); });
  }

  /// Whether the driver has the run's last lines, or will never get them.
  [[nodiscard]] bool has_told(const hosted_run& run) const {
    return run.alone_since || (!run.sends_output && output_->empty(run.what.run)) ||
           (run.ended_at && clock::now() - *run.ended_at >= last_lines_patience);
  }

  void forget(run_id id) {
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

  node_config config_;
  node_resources resources_;
  std::shared_ptr<shared_output> output_ = std::make_shared<shared_output>();
  std::unique_ptr<process_launcher> launcher_;
  run_table runs_;
  /// To drivers, over all runs: a run that is opened once more has none of its former numbers.
  std::uint64_t connections_ = 0;
  refusal_log refusals_;
  std::optional<draining> draining_;
  /// Only what is counted since the start.
  node_figures totals_;
  /// Set while the node takes no workers although it stays: how long they may wait for replacements.
  std::optional<std::chrono::milliseconds> drained_;
  std::optional<node_status> reported_;
};

} // namespace

node_actor spawn_node(caf::actor_system& system, node_config config, const launcher_factory& make_launcher) {
  return caf::actor_cast<node_actor>(system.spawn<node_state>(std::move(config), make_launcher));
}

} // namespace troupe::actors
