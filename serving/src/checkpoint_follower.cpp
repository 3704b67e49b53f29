#include <troupe/serving/checkpoint_follower.hpp>

#include <caf/actor_system.hpp>
#include <caf/typed_event_based_actor.hpp>

#include <utility>

namespace troupe::serving {

namespace {

class checkpoint_follower final : public actors::run_observer::base {
 public:
  checkpoint_follower(caf::actor_config& config, std::shared_ptr<server> target)
      : actors::run_observer::base(config), target_(std::move(target)) {}

  behavior_type make_behavior() override {
    return {
        [](const run_started&) {},
        [](const run_progress&) {},
        [this](const checkpoint_saved&) { target_->check_for_newer(); },
        [](const checkpoint_skipped&) {},
        [](const checkpoint_failed&) {},
        [](const generation_record&) {},
        [](const run_notice&) {},
    };
  }

  void on_exit() override { target_.reset(); }

 private:
  std::shared_ptr<server> target_;
};

} // namespace

actors::run_observer spawn_checkpoint_follower(caf::actor_system& system, std::shared_ptr<server> target) {
  // The last owner of the server waits until it has stopped.
  return system.spawn<checkpoint_follower, caf::detached>(std::move(target));
}

} // namespace troupe::serving
