#include <troupe/actors/worker.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>

#include <chrono>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;

/// A small part of any heartbeat timeout.
constexpr auto beat_interval = 200ms;

class worker_state : public worker_actor::base {
 public:
  worker_state(caf::actor_config& cfg, node_actor node, std::shared_ptr<training_host> host)
      : worker_actor::base(cfg), node_(std::move(node)), host_(std::move(host)) {}

  behavior_type make_behavior() override {
    beat();
    return {
        [this](const begin_training& message) { host_->begin(message); },
        [this](const control_command& message) { host_->command(message); },
        [this](const abort_training& message) { host_->abort(message); },
        [this](const release_worker&) { host_->release(); },
        [this](const activity_question&) { return activity_answer{host_->describe()}; },
    };
  }

  void on_exit() override { node_ = nullptr; }

  const char* name() const override { return "troupe.worker"; }

 private:
  void beat() {
    caf::anon_send(node_, host_->beat());
    run_delayed(beat_interval, [this] { beat(); });
  }

  node_actor node_;
  std::shared_ptr<training_host> host_;
};

} // namespace

worker_actor spawn_worker(caf::actor_system& system, node_actor node, std::shared_ptr<training_host> host) {
  return caf::actor_cast<worker_actor>(system.spawn<worker_state>(std::move(node), std::move(host)));
}

} // namespace troupe::actors
