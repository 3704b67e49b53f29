#include <search/conductor.hpp>

#include <troupe/actor_system.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/messages/trainer.hpp>
#include <troupe/result.hpp>

#include <caf/all.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <system_error>
#include <utility>

namespace search {

using troupe::errc;
using troupe::error;
using troupe::run_result;
using troupe::run_status;

namespace {

constexpr auto metric = "held_out_loss";

/// Prints what a trial's trainer has to say to people.
class notices : public troupe::actors::run_observer::base {
 public:
  notices(caf::actor_config& cfg, std::string name) : troupe::actors::run_observer::base(cfg), name_(std::move(name)) {}

  behavior_type make_behavior() override {
    return {
        [](const troupe::run_started&) {},
        [](const troupe::run_progress&) {},
        [](const troupe::checkpoint_saved&) {},
        [](const troupe::checkpoint_skipped&) {},
        [](const troupe::checkpoint_failed&) {},
        [](const troupe::generation_record&) {},
        [this](const troupe::run_notice& x) {
          if (x.warning)
            std::fprintf(stderr, "%s: warning: %s\n", name_.c_str(), x.text.c_str());
        },
    };
  }

  const char* name() const override { return "search.notices"; }

 private:
  std::string name_;
};

/// The score of a trial whose run has ended at a rung.
troupe::expected<trial_score> score_of(std::size_t trial, std::uint64_t steps, const run_result& result) {
  if (result.status == run_status::failed)
    return troupe::fail(result.reason.code, fmt::format("{}: {}", name_of(trial), result.reason.message));
  const auto from = result.metrics_from.find(metric);
  if (result.steps != steps || from == result.metrics_from.end() || from->second != steps)
    return troupe::fail(errc::mismatch, fmt::format("{} is at step {} and has no held-out loss of step {}: remove {}, "
                                                    "or use another --name",
                                                    name_of(trial), result.steps, steps, result.path));
  trial_score score{trial, steps, {}, result.state_sha256, result.latest_checkpoint};
  if (const auto loss = result.metrics.at(metric); std::isfinite(loss))
    score.loss = loss;
  return score;
}

class conductor : public caf::event_based_actor {
 public:
  conductor(caf::actor_config& cfg, troupe::function train, search_record& record, search_config config)
      : caf::event_based_actor(cfg), train_(std::move(train)), record_(record), config_(std::move(config)) {}

  caf::behavior make_behavior() override {
    go_on();
    return {[this](const troupe::stop_request& how) { stop(how); }};
  }

  const char* name() const override { return "search.conductor"; }

 private:
  struct running_trial {
    troupe::actors::trainer_actor trainer;
    troupe::actors::run_observer observer;
    std::uint64_t steps = 0;
  };

  /// Starts the trials that are due, as many as may train at once; ends when there is nothing left to do.
  void go_on() {
    for (auto trial : record_.halving().due())
      if (!end_ && running_.size() < config_.at_once && !running_.contains(trial))
        start(trial);
    if (!running_.empty())
      return;
    config_.ended(end_.value_or(search_result{search_status::completed, {}}));
    quit();
  }

  void start(std::size_t trial) {
    running_trial now;
    now.steps = record_.halving().rung();
    try {
      now.trainer = troupe::spawn_trainer(system(), train_, describe(trial, now.steps), show(trial));
    } catch (const troupe::exception& x) {
      return fail(x.reason());
    }
    now.observer = spawn<notices>(name_of(trial));
    send(now.trainer, now.observer);
    request(now.trainer, caf::infinite, troupe::fit_request{})
        .then([this, trial](const run_result& result) { ended(trial, result); },
              [this, trial](const caf::error& reason) {
                run_result result;
                result.fail(troupe::actors::from_caf(reason));
                ended(trial, result);
              });
    running_.emplace(trial, std::move(now));
  }

  [[nodiscard]] troupe::trainer_config describe(std::size_t trial, std::uint64_t steps) const {
    auto result = config_.base;
    result.run.name = name_of(trial);
    // What the function sees does not depend on the rung.
    result.run.steps = record_.plan().rungs.back();
    result.run.stop_after = steps;
    result.config["learning_rate"] = record_.plan().learning_rates[trial];
    // Once, at the rung.
    result.options["evaluate_every"] = steps;
    return result;
  }

  [[nodiscard]] static std::function<void(troupe::rank_id, const std::string&)> show(std::size_t trial) {
    return [name = name_of(trial)](troupe::rank_id rank, const std::string& line) {
      std::fprintf(stderr, "[%s, rank %u] %s\n", name.c_str(), rank.value, line.c_str());
    };
  }

  void ended(std::size_t trial, const run_result& result) {
    auto run = running_.extract(trial).mapped();
    send_exit(run.observer, caf::exit_reason::user_shutdown);
    // A trial that was stopped before its rung has no score yet.
    if (const auto is_early = result.status == run_status::stopped && result.steps < run.steps; !is_early)
      take(trial, run.steps, result);
    else if (!end_)
      fail({errc::stopped, fmt::format("{} was stopped at step {}, before its rung at step {}: start the search again "
                                       "to go on",
                                       name_of(trial), result.steps, run.steps)});
    go_on();
  }

  void take(std::size_t trial, std::uint64_t steps, const run_result& result) {
    auto score = score_of(trial, steps, result);
    if (!score)
      return fail(std::move(score.error()));
    config_.report(fmt::format("{} (learning rate {}): {} after step {}", name_of(trial),
                               record_.plan().learning_rates[trial],
                               score->loss ? fmt::format("held-out loss {:.4f}", *score->loss)
                                           : std::string{"held-out loss is not a finite number"},
                               steps));
    auto decision = record_.add(std::move(*score));
    if (!decision)
      return fail(std::move(decision.error()));
    if (*decision)
      carry_out(**decision);
  }

  void carry_out(const rung_decision& decision) {
    const auto names = [](const std::vector<std::size_t>& trials) {
      std::vector<std::string> result;
      for (auto each : trials)
        result.push_back(name_of(each));
      return fmt::format("{}", fmt::join(result, ", "));
    };
    config_.report(decision.kept.empty() ? fmt::format("step {}: no trial has a finite loss", decision.steps)
                   : record_.halving().is_over()
                       ? fmt::format("step {}: {} is the best", decision.steps, names(decision.kept))
                       : fmt::format("step {}: on to step {} go {}", decision.steps, record_.halving().rung(),
                                     names(decision.kept)));
    if (config_.keep_all)
      return;
    for (auto each : decision.dropped) {
      auto code = std::error_code{};
      std::filesystem::remove_all(config_.base.run.storage_path / name_of(each) / "checkpoints", code);
      if (code)
        config_.report(fmt::format("warning: the checkpoints of {} stay: {}", name_of(each), code.message()));
    }
  }

  void stop(const troupe::stop_request& how) {
    if (!end_)
      end_ = search_result{search_status::stopped, {}};
    stop_trials(how);
  }

  /// The first reason counts.
  void fail(error reason) {
    if (end_ && end_->status == search_status::failed)
      return;
    end_ = search_result{search_status::failed, std::move(reason)};
    stop_trials({false});
  }

  void stop_trials(const troupe::stop_request& how) {
    for (const auto& [trial, run] : running_)
      send(run.trainer, how);
  }

  troupe::function train_;
  search_record& record_;
  search_config config_;
  std::map<std::size_t, running_trial> running_;
  /// Set when the search is to end before its last decision.
  std::optional<search_result> end_;
};

} // namespace

std::string name_of(std::size_t trial) {
  return fmt::format("trial-{}", trial);
}

caf::actor spawn_conductor(caf::actor_system& system, troupe::function train, search_record& record,
                           search_config config) {
  return system.spawn<conductor>(std::move(train), record, std::move(config));
}

} // namespace search
