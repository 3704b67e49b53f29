#include <troupe/actors/node.hpp>

#include "down.hpp"

#include <troupe/actors/error_conversion.hpp>
#include <troupe/actors/join_handshake.hpp>
#include <troupe/serialization/digest.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>

#include <map>
#include <set>
#include <unistd.h>

namespace troupe::actors {

namespace {

using node_backend =
    node_actor::extend<caf::result<void>(worker_ended), caf::result<void>(worker_output), caf::result<void>(peer_down)>;

/// A run, as far as it concerns one node.
struct hosted_run {
  open_run what;
  std::string program_path;
  run_control control;
  collectives_actor collectives;
  checkpoint_store store;
  join_handshake handshake;
  std::set<worker_id> started;
  std::set<worker_id> living;
  /// Set once the run is to end here; answered when nothing is left.
  bool ending = false;
  std::vector<caf::typed_response_promise<void>> waiting;
};

class node_state : public node_backend::base {
 public:
  node_state(caf::actor_config& cfg, node_config config, const launcher_factory& make_launcher)
      : node_backend::base(cfg), config_(std::move(config)) {
    auto self = caf::actor_cast<caf::weak_actor_ptr>(ctrl());
    auto tell = [self](auto event) {
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<node_backend>(strong), std::move(event));
    };
    launcher_ = make_launcher({[tell](worker_output event) { tell(std::move(event)); },
                               [tell](worker_ended event) { tell(std::move(event)); }});
  }

  behavior_type make_behavior() override {
    return {
        [this](const offer_request&) { return offer(); },
        [this](const open_run& request, const run_control& control, const collectives_actor& collectives,
               const checkpoint_store& store) { return open(request, control, collectives, store); },
        [this](const start_workers& request) { return start(request); },
        [this](const end_run& request) { return end(request); },
        [this](const join_request& request) { return challenge(request); },
        [this](const join_proof& proof) { return admit(proof); },
        [this](worker_ended& event) { worker_has_ended(std::move(event)); },
        [this](worker_output& event) { pass_on(std::move(event)); },
        [this](const peer_down& event) { driver_is_gone(event.run); },
    };
  }

  void on_exit() override {
    // Kills and reaps whatever is left.
    launcher_.reset();
    runs_.clear();
  }

  const char* name() const override { return "troupe.node"; }

 private:
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

  node_offer offer() const {
    return {config_.host, config_.address, static_cast<std::uint32_t>(::getpid()), config_.capacity};
  }

  caf::result<run_opened> open(const open_run& request, const run_control& control,
                               const collectives_actor& collectives, const checkpoint_store& store) {
    if (auto* known = find(request.run))
      return run_opened{request.run, known->program_path};
    auto path = launcher_->open(request);
    if (!path)
      return to_caf(path.error());
    runs_.emplace(
        request.run,
        hosted_run{request, *path, control, collectives, store, join_handshake{request.secret}, {}, {}, false, {}});
    auto self = caf::actor_cast<caf::weak_actor_ptr>(ctrl());
    when_down(control, [self, run = request.run] {
      if (auto strong = self.lock())
        caf::anon_send(caf::actor_cast<node_backend>(strong), peer_down{0, run});
    });
    log("run " + request.run_name + " (" + request.run.value + ") begins with " + *path);
    return run_opened{request.run, std::move(*path)};
  }

  caf::result<workers_started> start(const start_workers& request) {
    auto* run = find(request.run);
    if (run == nullptr)
      return unknown_run(request.run);
    workers_started result{request.run, {}};
    for (const auto& each : request.workers) {
      auto pid = launcher_->start({request.run, each.worker, run->what.secret, request.arguments, each.environment});
      if (!pid)
        return to_caf(pid.error());
      run->started.insert(each.worker);
      run->living.insert(each.worker);
      result.pids.push_back(*pid);
      log("worker " + std::to_string(each.worker.value) + " of run " + run->what.run_name + " is process " +
          std::to_string(*pid));
    }
    return result;
  }

  caf::result<void> end(const end_run& request) {
    auto i = runs_.find(request.run);
    if (i == runs_.end())
      return caf::unit;
    auto& run = i->second;
    run.ending = true;
    launcher_->kill(request.run);
    if (run.living.empty()) {
      forget(request.run);
      return caf::unit;
    }
    auto promise = make_response_promise<void>();
    run.waiting.push_back(promise);
    return promise;
  }

  caf::result<join_challenge> challenge(const join_request& request) {
    auto* run = find(request.run);
    if (run == nullptr)
      return unknown_run(request.run);
    if (!run->started.contains(request.worker))
      return to_caf(
          {errc::stale_generation, "this node has not started worker " + std::to_string(request.worker.value)});
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
    return {run->control, run->collectives, run->store};
  }

  void worker_has_ended(worker_ended event) {
    auto i = runs_.find(event.run);
    if (i == runs_.end())
      return;
    auto& run = i->second;
    run.living.erase(event.worker);
    log("worker " + std::to_string(event.worker.value) + " of run " + run.what.run_name +
        " ended: " + event.description);
    send(run.control, std::move(event));
    if (run.ending && run.living.empty())
      forget(i->first);
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
    i->second.ending = true;
    launcher_->kill(id);
    if (i->second.living.empty())
      forget(id);
  }

  void forget(run_id id) {
    auto node = runs_.extract(id);
    if (node.empty())
      return;
    launcher_->close(id);
    for (auto& promise : node.mapped().waiting)
      promise.deliver();
    log("run " + node.mapped().what.run_name + " (" + id.value + ") has ended here");
  }

  node_config config_;
  std::unique_ptr<process_launcher> launcher_;
  std::map<run_id, hosted_run> runs_;
};

} // namespace

node_actor spawn_node(caf::actor_system& system, node_config config, const launcher_factory& make_launcher) {
  return caf::actor_cast<node_actor>(system.spawn<node_state>(std::move(config), make_launcher));
}

} // namespace troupe::actors
