#include <troupe/actors/node.hpp>

#include "down.hpp"
#include "local_messages.hpp"
#include "node/hosted_run.hpp"
#include "node/shared_output.hpp"
#include "orderly_end.hpp"

#include <troupe/actors/decisions/device_ledger.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <optional>
#include <set>
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

/// What is left is killed so long before a node's grace period ends: the drivers can still be told.
constexpr auto last_moment = 500ms;

/// The node's host program is going away.
struct draining {
  clock::time_point grace_ends;
  /// The requests that are answered when no worker is left.
  std::vector<caf::typed_response_promise<void>> waiting = {};
};

class node_state : public orderly_end<node_interface::base> {
 public:
  node_state(caf::actor_config& cfg, node_config config, const launcher_factory& make_launcher)
      : orderly_end(cfg), config_(std::move(config)), devices_(devices_of(config_)) {
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
                               [tell](worker_ended event) { tell(std::move(event)); }});
  }

  behavior_type make_behavior() override {
    await_beat();
    return {
        [this](const offer_request& request) { return offer(request); },
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
        [this](const kill_worker& request) { kill(request); },
        [this](const worker_beat& beat) { take_beat(beat); },
        [this](const drain_request& request) { return drain(request); },
        [this](const end_run& request) { return end(request); },
        [this](const join_request& request) { return challenge(request); },
        [this](const join_proof& proof, const driver_follower& worker) { return admit(proof, worker); },
        [this](const launch_outcome& event) { note_start(event); },
        [this](worker_ended& event) { worker_has_ended(std::move(event)); },
        [this](const output_waiting& event) { send_output(event.run); },
        [this](const driver_down& event) { driver_is_gone(event); },
    };
  }

  const char* name() const override { return "troupe.node"; }

 private:
  void let_go() override {
    // Kills and reaps whatever is left.
    launcher_.reset();
    runs_.clear();
    answer_drain_requests();
  }

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

  static std::string unknown_run_text(const run_id& run) {
    return "this node has no run " + run.value + " (it has ended, or never began here)";
  }

  static caf::error unknown_run(const run_id& run) { return to_caf({errc::stale_generation, unknown_run_text(run)}); }

  caf::result<node_offer> offer(const offer_request& request) const {
    if (request.protocol != protocol_version)
      return to_caf({errc::unsupported_version,
                     fmt::format("this caf-node speaks version {} of the protocol, the driver version {}: install the "
                                 "same Troupe on all hosts",
                                 protocol_version, request.protocol)});
    const auto* before = find_orphan(request.directory);
    const auto& run = before == nullptr ? request.run : before->what.run;
    auto free = resources{config_.capacity.cpus, static_cast<double>(devices_.open_to(run))};
    return node_offer{config_.host, config_.address, static_cast<std::uint32_t>(::getpid()), free};
  }

  caf::result<run_opened> open(const open_run& request, const driver_handles& driver) {
    // The driver may have lost the answer, and have other handles since.
    if (auto* known = find(request.run)) {
      if (auto had = have(*known, request.claim); !had)
        return to_caf(had.error());
      if (known->alone_since || known->driver.control != driver.control)
        connect(*known, driver);
      return run_opened{request.run, known->program_path};
    }
    if (runs_.contains(request.run))
      return to_caf({errc::timed_out, "what this node had of the run is still ending"});
    auto promise = make_response_promise<run_opened>();
    auto begin = [this, promise, request, driver]() mutable {
      if (auto opened = open_now(request, driver))
        promise.deliver(std::move(*opened));
      else
        promise.deliver(to_caf(opened.error()));
    };
    if (const auto* before = find_orphan(request.directory)) {
      log("the driver of run " + before->what.run_name + " was started anew: the workers of the one before end");
      this->request(node_actor{caf::actor_cast<node_actor>(this)}, caf::infinite,
                    end_run{before->what.run, before->what.claim})
          .then(begin, [promise](const caf::error& reason) mutable { promise.deliver(reason); });
    } else {
      begin();
    }
    return promise;
  }

  /// A run in this directory whose driver is gone.
  [[nodiscard]] const hosted_run* find_orphan(const std::string& directory) const {
    for (const auto& [id, run] : runs_)
      if (run.alone_since && !run.ending && !directory.empty() && run.what.directory == directory)
        return &run;
    return nullptr;
  }

  expected<run_opened> open_now(const open_run& request, const driver_handles& driver) {
    TROUPE_TRY(auto path, launcher_->open(request));
    auto& run =
        runs_
            .emplace(request.run, hosted_run{request, path, join_handshake{request.secret},
                                             worker_watch{std::chrono::milliseconds{request.heartbeat_timeout_ms}}})
            .first->second;
    connect(run, driver);
    log("run " + request.run_name + " (" + request.run.value + ") begins with " + path);
    return run_opened{request.run, std::move(path)};
  }

  /// The driver of a run has these handles from now on.
  void connect(hosted_run& run, const driver_handles& driver) {
    run.driver = driver;
    run.alone_since.reset();
    when_down(driver.control, [self = caf::actor_cast<caf::weak_actor_ptr>(ctrl()), run = run.what.run,
                               connection = ++run.connection](down_cause why) {
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<node_interface>(strong), driver_down{run, connection, why});
    });
    run.news.connect(driver.control);
    for (const auto& [worker, follower] : run.followers)
      send(follower, driver.control, driver.collectives, driver.store);
    if (draining_)
      send(driver.control, node_leaving{run.what.run, grace_left()});
  }

  static expected<void> check(const hosted_run& run, const run_claim& claim) {
    if (claim < run.what.claim)
      return fail(errc::superseded, "another driver has taken run " + run.what.run_name + " over");
    return {};
  }

  /// The driver with this claim has the run, unless there is a greater one.
  expected<void> have(hosted_run& run, const run_claim& claim) {
    TROUPE_TRY(check(run, claim));
    if (claim == run.what.claim)
      return {};
    log("another driver takes run " + run.what.run_name + " over");
    send(run.driver.control, run_superseded{run.what.run});
    run.what.claim = claim;
    // The one before is not listened to any more, and the grace period of this one begins.
    ++run.connection;
    await_driver(run);
    return {};
  }

  template <class Request>
  expected<run_claimed> have_by_secret(const Request& request) {
    auto* run = find(request.run);
    if (run == nullptr)
      return fail(errc::stale_generation, unknown_run_text(request.run));
    if (request.secret != run->what.secret)
      return fail(errc::wrong_secret, "somebody else than its driver claims run " + request.run.value);
    TROUPE_TRY(have(*run, request.claim));
    run_claimed result{request.run, {}};
    for (auto worker : run->living) {
      if (run->stuck.contains(worker))
        continue;
      auto& beat = result.workers.emplace_back();
      beat.run = request.run;
      beat.worker = worker;
      if (const auto* last = run->watch.last_beat(worker))
        beat = *last;
    }
    return result;
  }

  caf::result<run_claimed> claim(const claim_run& request) {
    auto claimed = have_by_secret(request);
    if (!claimed)
      return to_caf(claimed.error());
    return std::move(*claimed);
  }

  caf::result<run_claimed> adopt(const adopt_run& request, const driver_handles& driver) {
    auto claimed = have_by_secret(request);
    if (!claimed)
      return to_caf(claimed.error());
    auto* run = find(request.run);
    const auto gap = run->alone_since ? clock::now() - *run->alone_since : clock::duration{0};
    log(fmt::format("the driver of run {} is connected again after {:.1f} s", run->what.run_name,
                    std::chrono::duration<double>(gap).count()));
    connect(*run, driver);
    return std::move(*claimed);
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
    if (auto had = check(*run, request.claim); !had)
      return to_caf(had.error());
    // The driver may ask again after a lost connection.
    const auto is_starting = [&](const worker_launch& x) { return run->starting.contains(x.worker); };
    if (const auto known = std::ranges::find_if(request.workers, is_starting); known != request.workers.end())
      return answer_of(*run->starting[known->worker]);
    // An id is used once: the outcome of its start is awaited under it.
    std::set<worker_id> ids;
    for (const auto& each : request.workers)
      if (run->started.contains(each.worker) || !ids.insert(each.worker).second)
        return to_caf({errc::already_exists, fmt::format("worker {} has been started before", each.worker)});
    std::vector<launch_request> launches;
    for (const auto& each : request.workers) {
      auto devices = devices_.take(request.run, each.worker, each.gpus);
      if (!devices) {
        for (const auto& taken : launches)
          devices_.give_back(request.run, taken.worker);
        return to_caf(devices.error());
      }
      launches.push_back({request.run, each.worker, run->what.secret, request.arguments, each.environment, *devices});
    }
    if (launches.empty())
      return workers_started{request.run, {}};
    auto order = std::make_shared<start_order>(launches);
    const auto answer = answer_of(*order);
    // A process may come to ask for entry before its start is reported.
    run->ended_at.reset();
    for (const auto& each : launches) {
      run->started.insert(each.worker);
      run->living.insert(each.worker);
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
    auto i = runs_.find(event.run);
    if (i == runs_.end())
      return;
    auto& run = i->second;
    auto order = std::move(run.starting.extract(event.worker).mapped());
    if (event.pid) {
      log(fmt::format("worker {} of run {} is process {}{}", event.worker, run.what.run_name, *event.pid,
                      on_devices(order->launch_of(event.worker).devices)));
      if (run.ending || run.killed.contains(event.worker))
        launcher_->kill(event.run, event.worker);
    } else {
      run.started.erase(event.worker);
      remove_living(run, event.worker);
      devices_.give_back(event.run, event.worker);
    }
    order->note(event);
    forget_if_ended(event.run);
  }

  caf::result<void> end(const end_run& request) {
    auto i = runs_.find(request.run);
    if (i == runs_.end())
      return caf::unit;
    auto& run = i->second;
    if (auto had = check(run, request.claim); !had)
      return to_caf(had.error());
    kill_all(run);
    auto promise = make_response_promise<void>();
    run.ending->push_back(promise);
    forget_if_ended(request.run);
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

  caf::result<run_control, collectives_actor, checkpoint_store> admit(const join_proof& proof,
                                                                      const driver_follower& worker) {
    auto* run = find(proof.run);
    if (run == nullptr)
      return unknown_run(proof.run);
    if (auto known = run->handshake.verify(proof); !known) {
      log(known.error().message);
      return to_caf(known.error());
    }
    run->watch.add(proof.worker, clock::now());
    run->followers[proof.worker] = worker;
    return {run->driver.control, run->driver.collectives, run->driver.store};
  }

  void await_beat() {
    run_delayed(beat_interval, [this] { beat(); });
  }

  void take_beat(const worker_beat& beat) {
    auto* run = find(beat.run);
    if (run == nullptr || !run->living.contains(beat.worker))
      return;
    run->watch.heard(beat, clock::now());
  }

  /// Reports to the drivers, and looks for silent workers.
  void beat() {
    for (auto& [id, run] : runs_) {
      report_stuck_workers(run);
      if (run.ending)
        continue;
      judge_silent_workers(run);
      // The last heartbeats are kept until there is somebody to tell.
      if (!run.alone_since)
        send(run.driver.control, run.watch.take_report(id));
    }
    await_beat();
  }

  void judge_silent_workers(hosted_run& run) {
    const auto sample = [&](worker_id worker) -> expected<worker_watch::samples> {
      TROUPE_TRY(auto process, launcher_->sample(run.what.run, worker));
      TROUPE_TRY(auto node, launcher_->sample_node());
      return worker_watch::samples{std::move(process), std::move(node)};
    };
    for (const auto& [worker, text] : run.watch.judge(clock::now(), sample))
      log(fmt::format("worker {} of run {} {}", worker, run.what.run_name, text));
  }

  void kill(const kill_worker& request) {
    auto* run = find(request.run);
    if (run == nullptr || !check(*run, request.claim) || !run->living.contains(request.worker) ||
        run->killed.contains(request.worker))
      return;
    log(fmt::format("worker {} of run {} is killed: {}", request.worker, run->what.run_name, request.reason));
    run->killed.emplace(request.worker, hosted_run::killing{request.reason, clock::now()});
    run->watch.expect_end(request.worker);
    launcher_->kill(request.run, request.worker);
  }

  /// The run ends here.
  void kill_all(hosted_run& run) {
    if (!run.ending)
      run.ending.emplace();
    for (auto worker : run.living)
      run.killed.emplace(worker, hosted_run::killing{{}, clock::now()});
    launcher_->kill(run.what.run);
  }

  /// A process in uninterruptible sleep ends when the kernel lets it. Nobody waits for it, and it keeps its GPUs.
  void report_stuck_workers(hosted_run& run) {
    std::vector<worker_ended> news;
    for (const auto& [worker, how] : run.killed) {
      if (clock::now() - how.since < kill_patience || !run.living.contains(worker) || run.starting.contains(worker) ||
          !run.stuck.insert(worker).second)
        continue;
      const auto sample = launcher_->sample(run.what.run, worker);
      const auto state = sample ? describe_unkillable(*sample) : sample.error().message;
      news.push_back({run.what.run, worker, 128 + SIGKILL, "it was killed, and is not dead: " + state, {}});
    }
    for (auto& event : news)
      report_end(run, std::move(event));
    if (!news.empty())
      run_delayed(0s, [this, id = run.what.run] { forget_if_ended(id); });
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
        send(run.driver.control, node_leaving{id, request.grace_ms});
      run_delayed(std::max<clock::duration>(grace - last_moment, 0ms), [this] { answer_drain_requests(); });
    }
    auto promise = make_response_promise<void>();
    draining_->waiting.push_back(promise);
    answer_if_drained();
    return promise;
  }

  void answer_if_drained() {
    if (std::ranges::all_of(runs_, [this](const auto& x) { return is_empty(x.second) && has_told(x.second); }))
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
    remove_living(run, event.worker);
    if (run.stuck.erase(event.worker) > 0)
      log(fmt::format("worker {} of run {} has ended at last", event.worker, run.what.run_name));
    else
      report_end(run, std::move(event));
    forget_if_ended(i->first);
  }

  void report_end(hosted_run& run, worker_ended event) {
    run.watch.remove(event.worker);
    run.followers.erase(event.worker);
    if (auto how = run.killed.find(event.worker); how != run.killed.end() && !how->second.why.empty())
      event.description = how->second.why + "; " + event.description;
    log(fmt::format("worker {} of run {} ended: {}", event.worker, run.what.run_name, event.description));
    run.news.send(*this, std::move(event));
  }

  /// One batch at a time is under way: what the driver does not take in waits here, or is dropped.
  void send_output(const run_id& id) {
    auto i = runs_.find(id);
    if (i == runs_.end())
      return output_->forget(id);
    if (i->second.sends_output)
      return;
    auto batch = output_->take(id);
    if (!batch)
      return forget_if_ended(id);
    i->second.sends_output = true;
    auto go_on = [this, id] {
      if (auto i = runs_.find(id); i != runs_.end()) {
        i->second.sends_output = false;
        send_output(id);
      }
    };
    i->second.news.request<void>(
        *this, go_on, [go_on](const caf::error&) { go_on(); }, std::move(*batch));
  }

  void driver_is_gone(const driver_down& event) {
    auto i = runs_.find(event.run);
    if (i == runs_.end() || i->second.connection != event.connection)
      return;
    auto& run = i->second;
    if (event.why == down_cause::ended || run.what.driver_grace_ms == 0 || run.ending)
      return end_without_driver(run);
    log(fmt::format("the connection to the driver of run {} is lost: its workers go on, and end if it is not back in "
                    "{:.1f} s",
                    run.what.run_name, static_cast<double>(run.what.driver_grace_ms) / 1000));
    await_driver(run);
  }

  /// The run goes on without a driver, and ends if none comes in time.
  void await_driver(hosted_run& run) {
    run.alone_since = clock::now();
    run_delayed(std::chrono::milliseconds{run.what.driver_grace_ms},
                [this, id = run.what.run, connection = run.connection] {
                  auto i = runs_.find(id);
                  if (i != runs_.end() && i->second.connection == connection && i->second.alone_since)
                    end_without_driver(i->second);
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
    if (auto i = runs_.find(id); i != runs_.end() && has_ended(i->second) && has_told(i->second))
      forget(id);
    answer_if_drained();
  }

  /// Whether no worker is left that can end.
  static bool is_empty(const hosted_run& run) { return run.living.size() == run.stuck.size(); }

  static bool has_ended(const hosted_run& run) { return run.ending && is_empty(run); }

  void remove_living(hosted_run& run, worker_id worker) {
    run.living.erase(worker);
    if (!run.living.empty())
      return;
    run.ended_at = clock::now();
    run_delayed(last_lines_patience, [this, id = run.what.run] { forget_if_ended(id); });
  }

  /// Whether its last lines are with the driver, or will not be.
  [[nodiscard]] bool has_told(const hosted_run& run) const {
    return run.alone_since || (!run.sends_output && output_->empty(run.what.run)) ||
           (run.ended_at && clock::now() - *run.ended_at >= last_lines_patience);
  }

  void forget(run_id id) {
    auto run = runs_.extract(id);
    if (run.empty())
      return;
    launcher_->close(id);
    output_->forget(id);
    for (auto& promise : run.mapped().ending.value_or(std::vector<caf::typed_response_promise<void>>{}))
      promise.deliver();
    log(fmt::format("run {} ({}) has ended here", run.mapped().what.run_name, id));
  }

  node_config config_;
  device_ledger devices_;
  std::shared_ptr<shared_output> output_ = std::make_shared<shared_output>();
  std::unique_ptr<process_launcher> launcher_;
  std::map<run_id, hosted_run> runs_;
  std::optional<draining> draining_;
};

} // namespace

node_actor spawn_node(caf::actor_system& system, node_config config, const launcher_factory& make_launcher) {
  return caf::actor_cast<node_actor>(system.spawn<node_state>(std::move(config), make_launcher));
}

} // namespace troupe::actors
