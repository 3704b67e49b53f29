#include <troupe/actors/checkpoint_store.hpp>

#include <troupe/actors/checkpoint_attempts.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/serialization/checkpoint_directory.hpp>

#include <caf/actor_system.hpp>
#include <caf/all.hpp>

#include <chrono>
#include <map>
#include <tuple>
#include <vector>

namespace troupe::actors {

namespace {

class checkpoint_store_state : public checkpoint_store::base {
 public:
  checkpoint_store_state(caf::actor_config& cfg, checkpoint_store_config config)
      : checkpoint_store::base(cfg), config_(std::move(config)) {}

  behavior_type make_behavior() override {
    return {
        [this](const checkpoint_facts& facts) { attempts_.set_facts(facts); },
        [this](const generation_started& message) { begin(message); },
        [this](const checkpoint_part& part) { return add(part); },
    };
  }

  void on_exit() override {
    // Whoever holds a handle keeps this object, and with it the promises: they are not broken by themselves.
    for (auto& [key, waiting] : std::exchange(waiting_, {}))
      for (auto& each : waiting)
        each.deliver(to_caf({errc::aborted, "the run is ending"}));
  }

  const char* name() const override { return "troupe.checkpoint_store"; }

 private:
  using promise = caf::typed_response_promise<checkpoint_outcome>;

  /// Parts of older generations will not all come.
  void begin(const generation_started& message) {
    if (message.run != config_.run || message.generation <= generation_)
      return;
    generation_ = message.generation;
    attempts_.forget_before(generation_);
    auto first_that_stays = waiting_.lower_bound({generation_, step_id{}, 0});
    for (auto i = waiting_.begin(); i != first_that_stays; i = waiting_.erase(i))
      for (auto& each : i->second)
        each.deliver(stale());
  }

  caf::error stale() const {
    return to_caf({errc::stale_generation,
                   "generation " + std::to_string(generation_.value) + " has begun: the checkpoint is taken again"});
  }

  caf::result<checkpoint_outcome> add(const checkpoint_part& part) {
    if (part.run != config_.run)
      return to_caf({errc::stale_generation,
                     "a part of a checkpoint of run " + part.run.value + " came to run " + config_.run.value});
    if (part.generation < generation_)
      return stale();
    auto key = std::tuple{part.generation, part.step, part.attempt};
    waiting_[key].push_back(make_response_promise<checkpoint_outcome>());
    auto answer = waiting_[key].back();
    auto now = std::chrono::time_point_cast<std::chrono::milliseconds>(std::chrono::system_clock::now());
    auto whole = attempts_.add(part, now);
    if (!whole)
      return answer;
    auto outcome = commit(part.step, std::move(*whole));
    if (config_.on_outcome)
      config_.on_outcome(outcome);
    auto waiting = waiting_.extract(key);
    for (auto& each : waiting.mapped())
      each.deliver(outcome);
    return answer;
  }

  checkpoint_outcome commit(step_id step, expected<complete_checkpoint> whole) {
    auto give_up = [&](error reason) {
      // What was written of it is in the way of nobody, but of the disk.
      std::ignore = serialization::remove_abandoned(config_.directory);
      return checkpoint_outcome{step, {}, std::move(reason)};
    };
    if (!whole)
      return give_up(std::move(whole.error()));
    auto path = serialization::commit_checkpoint(config_.directory, config_.directory / whole->temporary_directory,
                                                 whole->content);
    if (!path)
      return give_up(std::move(path.error()));
    // What cannot be removed costs space; it is tried again after the next checkpoint.
    std::ignore = serialization::apply_retention(config_.directory,
                                                 {config_.num_to_keep, config_.score_attribute, config_.score_order});
    return {step, path->string(), {}};
  }

  checkpoint_store_config config_;
  checkpoint_attempts attempts_;
  /// The last that was begun anew; none before a member is lost.
  generation_id generation_;
  std::map<std::tuple<generation_id, step_id, std::uint32_t>, std::vector<promise>> waiting_;
};

} // namespace

checkpoint_store spawn_checkpoint_store(caf::actor_system& system, checkpoint_store_config config) {
  return system.spawn<checkpoint_store_state, caf::detached>(std::move(config));
}

} // namespace troupe::actors
