#include <troupe/actors/node.hpp>

#include "down.hpp"
#include "local_messages.hpp"

#include <troupe/actors/decisions/device_ledger.hpp>
#include <troupe/actors/decisions/heartbeat_monitor.hpp>
#include <troupe/actors/decisions/join_handshake.hpp>
#include <troupe/actors/decisions/silence.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <unistd.h>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

using node_interface = node_actor::extend<caf::result<void>(worker_ended), caf::result<void>(worker_output),
                                          caf::result<void>(driver_down)>;

/// How often a node reports to the drivers, and looks for silent workers.
constexpr auto beat_interval = 200ms;

/// What is left is killed so long before a node's grace period ends: the drivers can still be told.
constexpr auto last_moment = 500ms;

/// A run, as far as it concerns one node.
struct hosted_run {
  open_run what;
  std::string program_path;
  run_control control;
  collectives_actor collectives;
  checkpoint_store store;
  join_handshake handshake;
  /// Watches the workers that have joined.
  heartbeat_monitor<worker_id> monitor;
  std::set<worker_id> started = {};
  std::set<worker_id> living = {};
  /// The last of each worker since the driver was told.
  std::map<worker_id, worker_beat> beats = {};
  /// The processes of overdue workers, as they were when they became overdue.
  std::map<worker_id, process_sample> first_samples = {};
  /// The workers that this node has killed, and why.
  std::map<worker_id, std::string> fenced = {};
  /// Set once the run is to end here: the requests that are answered when nothing of it is left.
  std::optional<std::vector<caf::typed_response_promise<void>>> ending = {};
};

/// The node's host program is going away.
struct draining {
  clock::time_point grace_ends;
  /// The requests that are answered when no worker is left.
  std::vector<caf::typed_response_promise<void>> waiting = {};
};

class node_state : public node_interface::base {
 public:
  node_state(caf::actor_config& cfg, node_config config, const launcher_factory& make_launcher)
      : node_interface::base(cfg), config_(std::move(config)), devices_(devices_of(config_)) {
    auto self = caf::actor_cast<caf::weak_actor_ptr>(ctrl());
    auto tell = [self](auto event) {
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<node_interface>(strong), std::move(event));
    };
    launcher_ = make_launcher({[tell](worker_output event) { tell(std::move(event)); },
                               [tell](worker_ended event) { tell(std::move(event)); }});
  }

  behavior_type make_behavior() override {
    await_beat();
    return {
        [this](const offer_request& request) { return offer(request); },
        [this](const open_run& request, const run_control& control, const collectives_actor& collectives,
               const checkpoint_store& store) { return open(request, control, collectives, store); },
        [this](const start_workers& request) { return start(request); },
        [this](const kill_worker& request) { kill(request); },
        [this](const worker_beat& beat) { take_beat(beat); },
        [this](const drain_request& request) { return drain(request); },
        [this](const end_run& request) { return end(request); },
        [this](const join_request& request) { return challenge(request); },
        [this](const join_proof& proof) { return admit(proof); },
        [this](worker_ended& event) { worker_has_ended(std::move(event)); },
        [this](worker_output& event) { pass_on(std::move(event)); },
        [this](const driver_down& event) { driver_is_gone(event.run); },
    };
  }

  void on_exit() override {
    // Kills and reaps whatever is left.
    launcher_.reset();
    runs_.clear();
    answer_drain_requests();
  }

  const char* name() const override { return "troupe.node"; }

 private:
  static std::vector<std::string> devices_of(const node_config& config) {
    auto result = config.devices;
    while (result.size() < config.capacity.gpus)
      result.push_back(std::to_string(result.size()));
    return result;
  }

  void log(const std::string& line) const {
    if (config_.log)
      config_.log(line);
  }

  hosted_run* find(const run_id& run) {
    auto i = runs_.find(run);
    return i == runs_.end() || i->second.ending ? nullptr : &i->second;
  }

  static caf::error unknown_run(const run_id& run) {
    return to_caf(
        {errc::stale_generation, "this node has no run " + run.value + " (it has ended, or never began here)"});
  }

  caf::result<node_offer> offer(const offer_request& request) const {
    if (request.protocol != protocol_version)
      return to_caf({errc::unsupported_version,
                     fmt::format("this caf-node speaks version {} of the protocol, the driver version {}: install the "
                                 "same Troupe on all hosts",
                                 protocol_version, request.protocol)});
    auto free = resources{config_.capacity.cpus, static_cast<double>(devices_.open_to(request.run))};
    return node_offer{config_.host, config_.address, static_cast<std::uint32_t>(::getpid()), free};
  }

  caf::result<run_opened> open(const open_run& request, const run_control& control,
                               const collectives_actor& collectives, const checkpoint_store& store) {
    if (auto* known = find(request.run))
      return run_opened{request.run, known->program_path};
    if (runs_.contains(request.run))
      return to_caf({errc::timed_out, "what this node had of the run is still ending"});
    auto path = launcher_->open(request);
    if (!path)
      return to_caf(path.error());
    runs_.emplace(request.run,
                  hosted_run{request, *path, control, collectives, store, join_handshake{request.secret},
                             heartbeat_monitor<worker_id>{std::chrono::milliseconds{request.heartbeat_timeout_ms}}});
    if (draining_)
      send(control, node_leaving{request.run, grace_left()});
    auto self = caf::actor_cast<caf::weak_actor_ptr>(ctrl());
    when_down(control, [self, run = request.run] {
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<node_interface>(strong), driver_down{run});
    });
    log("run " + request.run_name + " (" + request.run.value + ") begins with " + *path);
    return run_opened{request.run, std::move(*path)};
  }

  static std::string on_devices(const std::vector<std::string>& devices) {
    auto text = std::string{};
    for (const auto& each : devices)
      text += (text.empty() ? " on GPU " : ", ") + each;
    return text;
  }

  caf::result<workers_started> start(const start_workers& request) {
    auto* run = find(request.run);
    if (run == nullptr)
      return unknown_run(request.run);
    workers_started result{request.run, {}};
    for (const auto& each : request.workers) {
      auto devices = devices_.take(request.run, each.worker, each.gpus);
      if (!devices)
        return to_caf(devices.error());
      auto pid =
          launcher_->start({request.run, each.worker, run->what.secret, request.arguments, each.environment, *devices});
      if (!pid) {
        devices_.give_back(request.run, each.worker);
        return to_caf(pid.error());
      }
      run->started.insert(each.worker);
      run->living.insert(each.worker);
      result.pids.push_back(*pid);
      log(fmt::format("worker {} of run {} is process {}{}", each.worker, run->what.run_name, *pid,
                      on_devices(*devices)));
    }
    return result;
  }

  caf::result<void> end(const end_run& request) {
    auto i = runs_.find(request.run);
    if (i == runs_.end())
      return caf::unit;
    auto& run = i->second;
    if (!run.ending)
      run.ending.emplace();
    launcher_->kill(request.run);
    if (run.living.empty()) {
      forget(request.run);
      return caf::unit;
    }
    auto promise = make_response_promise<void>();
    run.ending->push_back(promise);
    return promise;
  }

  caf::result<join_challenge> challenge(const join_request& request) {
    auto* run = find(request.run);
    if (run == nullptr)
      return unknown_run(request.run);
    if (!run->started.contains(request.worker))
      return to_caf({errc::stale_generation, fmt::format("this node has not started worker {}", request.worker)});
    return run->handshake.challenge(request, serialization::random_hex(16));
  }

  caf::result<run_control, collectives_actor, checkpoint_store> admit(const join_proof& proof) {
    auto* run = find(proof.run);
    if (run == nullptr)
      return unknown_run(proof.run);
    if (auto known = run->handshake.verify(proof); !known) {
      log(known.error().message);
      return to_caf(known.error());
    }
    run->monitor.add(proof.worker, clock::now());
    return {run->control, run->collectives, run->store};
  }

  void await_beat() {
    run_delayed(beat_interval, [this] { beat(); });
  }

  void take_beat(const worker_beat& beat) {
    auto* run = find(beat.run);
    if (run == nullptr || !run->living.contains(beat.worker))
      return;
    run->monitor.heard(beat.worker, clock::now());
    run->first_samples.erase(beat.worker);
    run->beats.insert_or_assign(beat.worker, beat);
  }

  /// Reports to the drivers, and looks for silent workers.
  void beat() {
    for (auto& [id, run] : runs_) {
      if (run.ending)
        continue;
      judge_silent_workers(run);
      node_beat message{id, {}};
      for (auto& [worker, each] : std::exchange(run.beats, {}))
        message.workers.push_back(std::move(each));
      send(run.control, std::move(message));
    }
    await_beat();
  }

  void judge_silent_workers(hosted_run& run) {
    const auto now = clock::now();
    const auto timeout = std::chrono::milliseconds{run.what.heartbeat_timeout_ms};
    for (const auto& [worker, silent_for] : run.monitor.silent(now)) {
      auto sample = launcher_->sample(run.what.run, worker);
      if (!sample) {
        log(fmt::format("worker {} is silent, and its process cannot be sampled: {}", worker, sample.error().message));
        run.monitor.spare(worker);
        continue;
      }
      auto before = run.first_samples.contains(worker) ? run.first_samples[worker] : *sample;
      auto verdict = judge_silence(before, *sample, silent_for, timeout);
      if (verdict.fenced)
        kill({run.what.run, worker, "its process " + verdict.reason});
      else
        run.monitor.spare(worker);
    }
    for (const auto& [worker, silent_for] : run.monitor.overdue(now))
      if (auto sample = launcher_->sample(run.what.run, worker))
        run.first_samples.insert_or_assign(worker, *sample);
  }

  void kill(const kill_worker& request) {
    auto* run = find(request.run);
    if (run == nullptr || !run->living.contains(request.worker) || run->fenced.contains(request.worker))
      return;
    log(fmt::format("worker {} of run {} is killed: {}", request.worker, run->what.run_name, request.reason));
    run->fenced.emplace(request.worker, request.reason);
    launcher_->kill(request.run, request.worker);
  }

  [[nodiscard]] std::uint64_t grace_left() const {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(draining_->grace_ends - clock::now()).count();
    return static_cast<std::uint64_t>(std::max<std::int64_t>(left, 0));
  }

  caf::result<void> drain(const drain_request& request) {
    if (!draining_) {
      const auto grace = std::chrono::milliseconds{request.grace_ms};
      draining_ = draining{clock::now() + grace};
      for (auto& [id, run] : runs_)
        send(run.control, node_leaving{id, request.grace_ms});
      run_delayed(std::max<clock::duration>(grace - last_moment, 0ms), [this] { answer_drain_requests(); });
    }
    auto promise = make_response_promise<void>();
    draining_->waiting.push_back(promise);
    answer_if_drained();
    return promise;
  }

  void answer_if_drained() {
    if (std::ranges::all_of(runs_, [](const auto& x) { return x.second.living.empty(); }))
      answer_drain_requests();
  }

  void answer_drain_requests() {
    if (draining_)
      for (auto& each : std::exchange(draining_->waiting, {}))
        each.deliver();
  }

  void worker_has_ended(worker_ended event) {
    devices_.give_back(event.run, event.worker);
    auto i = runs_.find(event.run);
    if (i == runs_.end())
      return;
    auto& run = i->second;
    run.living.erase(event.worker);
    run.monitor.remove(event.worker);
    run.beats.erase(event.worker);
    if (auto why = run.fenced.find(event.worker); why != run.fenced.end())
      event.description = why->second + "; " + event.description;
    log(fmt::format("worker {} of run {} ended: {}", event.worker, run.what.run_name, event.description));
    send(run.control, std::move(event));
    if (run.ending && run.living.empty())
      forget(i->first);
    answer_if_drained();
  }

  void pass_on(worker_output event) {
    if (auto i = runs_.find(event.run); i != runs_.end())
      send(i->second.control, std::move(event));
  }

  void driver_is_gone(const run_id& id) {
    auto i = runs_.find(id);
    if (i == runs_.end())
      return;
    log("the driver of run " + i->second.what.run_name + " is gone: its workers end");
    if (!i->second.ending)
      i->second.ending.emplace();
    launcher_->kill(id);
    if (i->second.living.empty())
      forget(id);
  }

  void forget(run_id id) {
    auto run = runs_.extract(id);
    if (run.empty())
      return;
    launcher_->close(id);
    for (auto& promise : run.mapped().ending.value_or(std::vector<caf::typed_response_promise<void>>{}))
      promise.deliver();
    log(fmt::format("run {} ({}) has ended here", run.mapped().what.run_name, id));
  }

  node_config config_;
  device_ledger devices_;
  std::unique_ptr<process_launcher> launcher_;
  std::map<run_id, hosted_run> runs_;
  std::optional<draining> draining_;
};

} // namespace

node_actor spawn_node(caf::actor_system& system, node_config config, const launcher_factory& make_launcher) {
  return caf::actor_cast<node_actor>(system.spawn<node_state>(std::move(config), make_launcher));
}

} // namespace troupe::actors
