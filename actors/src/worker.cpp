#include <troupe/actors/worker.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>

namespace troupe::actors {

namespace {

class worker_state : public worker_actor::base {
 public:
  worker_state(caf::actor_config& cfg, std::shared_ptr<training_host> host)
      : worker_actor::base(cfg), host_(std::move(host)) {}

  behavior_type make_behavior() override {
    return {
        [this](const begin_training& message) { host_->begin(message); },
        [this](const control_command& message) { host_->command(message); },
        [this](const abort_training& message) { host_->abort(message); },
        [this](const release_worker&) { host_->release(); },
    };
  }

  const char* name() const override { return "troupe.worker"; }

 private:
  std::shared_ptr<training_host> host_;
};

} // namespace

worker_actor spawn_worker(caf::actor_system& system, std::shared_ptr<training_host> host) {
  return system.spawn<worker_state>(std::move(host));
}

} // namespace troupe::actors
