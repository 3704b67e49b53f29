#pragma once

#include <troupe/actors/decisions/failure_budget.hpp>
#include <troupe/actors/decisions/failure_log.hpp>
#include <troupe/actors/decisions/host_comparison.hpp>
#include <troupe/actors/decisions/last_copy.hpp>
#include <troupe/actors/decisions/placement.hpp>
#include <troupe/actors/decisions/plan_comparison.hpp>
#include <troupe/actors/decisions/run_actions.hpp>
#include <troupe/actors/decisions/run_attempt.hpp>
#include <troupe/config/failure.hpp>
#include <troupe/config/run.hpp>
#include <troupe/config/scaling.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/staging.hpp>
#include <troupe/messages/trainer.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::actors {

/// The phases of a run, across its attempts.
namespace run_phase {

/// The attempt says what.
struct running {};

/// A failure ends the run, once the state is saved and all workers have finished or ended.
struct failing {
  /// The index of the first failure that ends it.
  std::size_t first_failure = 0;
  last_copy copy;
  /// The error sent to all workers. A worker that fails with it only repeats it.
  std::optional<errc> answered;
};

/// All workers have returned, and their processes end.
struct releasing {};

struct over {};

} // namespace run_phase

/// Decides what happens to a run: when it begins, whether the workers agree, what a failure means, when it is over. Its
/// attempt decides which workers join and leave. The events below come from workers, nodes, users and the clock, in
/// that order. A plain class: no actor, socket or clock; the trainer carries messages to and from it. One instance per
/// run; not thread-safe.
class run_coordinator {
 public:
  /// `places` by rank; `compare_numerics` is a function from two fingerprints (JSON text) to the list of their
  /// differences.
  struct settings {
    run_id run;
    std::string build_id;
    std::vector<worker_place> places;
    bool allow_mixed_hosts = false;
    std::optional<resumed_plan> resumed;
    std::vector<std::string> (*compare_numerics)(const std::string& ours, const std::string& theirs) = nullptr;
    failure_config failure = {};
    /// How many workers are wanted, and how many are the least.
    worker_range workers = {1, 1};
    /// The step from which the run continues.
    step_id first_step = {};
    /// How long a process may take from its start until it joins.
    std::chrono::milliseconds start_timeout{30'000};
    /// Whether the libraries may be others than those of `resumed`.
    bool allow_changed_libraries = false;
    /// How to repeat what ends every attempt, for the end of a message.
    std::string in_one_process = {};
    /// As configured.
    transport_mode transport = transport_mode::automatic;
  };

  /// Any clock that does not go back.
  using time = run_time;

  explicit run_coordinator(const settings& config);
  /// Continues a run whose driver has ended: `config.places` and `config.first_step` are not used. The first event is
  /// `on_adopted`.
  run_coordinator(const settings& config, const control_state& from, time now);

  /// Host and process id of a member, as known to the previous driver, in case it ends before it reports them again.
  void introduce(worker_id worker, const std::string& host, std::uint32_t pid);

  /// Asks the members for reports, after which they form the next generation. `others` are live processes without a
  /// place, which are ended.
  [[nodiscard]] run_actions on_adopted(const std::vector<worker_place>& others, time now);

  /// A process has joined.
  [[nodiscard]] run_actions on_ready(const worker_ready& message);
  [[nodiscard]] run_actions on_plan(const run_plan& message, time now = {});
  [[nodiscard]] run_actions on_finished(const worker_finished& message);
  /// A worker's group is gone, or a joiner asks for a place.
  [[nodiscard]] run_actions on_report(const regroup_report& report, time now = {});
  /// A joiner that follows the members in a staging group has caught up.
  [[nodiscard]] run_actions on_caught_up(const caught_up& message);
  /// Notes how far a worker is, for failure records.
  void on_applied(worker_id worker, step_id step);
  /// A worker's heartbeat. A joiner that changes `progress` on the way to its first loop is not given up.
  void on_sign_of_life(worker_id worker, std::uint64_t progress, time now);

  [[nodiscard]] run_actions on_ended(const worker_ended& message);
  /// Nodes do not answer, for these reasons, and their workers may live. They are given up if other workers have the
  /// state; otherwise the run waits for them.
  [[nodiscard]] run_actions on_nodes_silent(const std::map<std::uint32_t, std::string>& nodes, time now);
  /// It answers again. Its workers are members as before unless they were given up.
  [[nodiscard]] run_actions on_node_answers(std::uint32_t node, time now);
  /// All of this node's workers that are silent and may live, with the reasons. They are treated like silent nodes.
  [[nodiscard]] run_actions on_workers_silent(std::uint32_t node, const std::vector<silent_worker>& workers, time now);
  /// A node's workers have ended.
  [[nodiscard]] run_actions on_node_lost(std::uint32_t node, const std::string& why);
  /// A node is going away. `capacity_elsewhere`: whether others can take in its workers.
  [[nodiscard]] run_actions on_node_leaving(std::uint32_t node, bool capacity_elsewhere);
  /// The time limit for replacing leaving workers is over: they leave without replacements.
  [[nodiscard]] run_actions on_drain_timeout();
  /// A node that was to go stays: so do those of its workers that have not left.
  [[nodiscard]] run_actions on_node_resumed(std::uint32_t node);
  /// There is capacity for more workers, perhaps.
  [[nodiscard]] run_actions on_capacity();
  /// These were started after `start_more`.
  void on_started(const std::vector<worker_place>& places, time now = {}) { attempt_.on_started(places, now); }
  /// These were started after `restart_run`, from the state of `first_step`.
  void on_restarted(const std::vector<worker_place>& places, std::optional<resumed_plan> resumed, step_id first_step);

  [[nodiscard]] run_actions on_stop(const stop_request& message);
  [[nodiscard]] run_actions on_checkpoint_request();
  [[nodiscard]] run_actions on_resize(std::uint32_t workers);
  [[nodiscard]] run_actions on_pause();
  [[nodiscard]] run_actions on_resume();

  /// Not all workers have joined within the limit.
  [[nodiscard]] run_actions on_start_timeout();
  /// Released workers took longer than the grace period.
  [[nodiscard]] run_actions on_grace_timeout();
  /// Call it several times a second: it lets joiners in, gives up late ones, and enforces the time limits of a failing
  /// run.
  [[nodiscard]] run_actions on_tick(time now);
  /// There have been too few workers for too long.
  [[nodiscard]] run_actions on_hold_timeout();
  /// All ranks have waited in collective operations, or for the driver, for too long: `why` says which and where.
  [[nodiscard]] run_actions on_group_hang(const std::string& why);

  /// This worker makes no progress in the user's code, and the others wait for it: it is killed, and counts as one that
  /// has ended by itself.
  [[nodiscard]] run_actions on_hang(worker_id worker, const std::string& why);

  /// In the order in which they were reported. Those that ended the run are last, their cause first among them.
  [[nodiscard]] const std::vector<failure_record>& failures() const noexcept { return failures_.records(); }
  /// Empty until a training function has returned.
  [[nodiscard]] std::string state_sha256() const {
    const auto& end = attempt_.course().end;
    return end ? end->state_sha256 : std::string{};
  }
  /// The last step that all workers have applied, known when they finished.
  [[nodiscard]] step_id final_step() const {
    const auto& end = attempt_.course().end;
    return end ? end->step : first_step_;
  }
  /// The state that the run's journal must contain before the last decision takes effect.
  [[nodiscard]] control_state state_to_keep() const {
    auto result = attempt_.state_to_keep();
    result.failures = budget_.in_row();
    return result;
  }
  /// The same if it differs from `kept`.
  [[nodiscard]] std::optional<control_state> change_since(const control_state& kept) const {
    const auto is_kept = kept.failures == budget_.in_row() && attempt_.is_kept_in(kept);
    return is_kept ? std::nullopt : std::optional{state_to_keep()};
  }
  [[nodiscard]] bool exact_hosts() const noexcept { return hosts_.is_exact(); }
  /// The generation that was formed last, from 1.
  [[nodiscard]] generation_id generation() const noexcept { return attempt_.generation(); }
  [[nodiscard]] std::uint32_t attempt() const noexcept { return attempt_.number(); }
  [[nodiscard]] bool over() const noexcept { return is<run_phase::over>(); }
  /// Whether a training function has returned: the others are about to.
  [[nodiscard]] bool somebody_has_finished() const noexcept { return attempt_.course().end.has_value(); }
  [[nodiscard]] bool starting() const noexcept { return is<run_phase::running>() && attempt_.is_starting(); }
  [[nodiscard]] bool training() const noexcept { return is<run_phase::running>() && attempt_.is_training(); }
  /// Whether workers that report will hear of a next generation.
  [[nodiscard]] bool goes_on() const noexcept { return is<run_phase::running>() && attempt_.goes_on(); }
  /// Whether all have reported, and the next generation waits for `on_resume` or more workers.
  [[nodiscard]] bool held() const noexcept { return is<run_phase::running>() && attempt_.is_held(); }
  /// What the run's users have asked it to do.
  [[nodiscard]] run_course::request asked() const noexcept { return attempt_.course().asked; }
  /// Whether nodes or workers are silent, and the run waits for them.
  [[nodiscard]] bool awaits_answers() const noexcept { return !attempt_.silent().empty(); }
  /// The silent peers for which a requested stop waits, for people; empty if there are none.
  [[nodiscard]] std::string stop_waits_for(time now,
                                           const std::function<std::string(std::uint32_t)>& name_of_node) const {
    return goes_on() && attempt_.course().asked == run_course::request::stop
               ? attempt_.silent().describe_silence(attempt_.workers(), now, name_of_node)
               : std::string{};
  }
  /// The workers that have not reported yet, for people; empty unless a generation is being formed.
  [[nodiscard]] std::string awaited_reports() const {
    return goes_on() && attempt_.is_regrouping() ? attempt_.workers().awaited_reports() : std::string{};
  }
  /// Whether it is a worker of this attempt; and one whose process has yet to join.
  [[nodiscard]] bool knows(worker_id worker) const { return attempt_.workers().find(worker) != nullptr; }
  [[nodiscard]] bool expects(worker_id worker) const { return attempt_.workers().stands_as<standing::started>(worker); }
  /// Whether it has joined, and its process lives as far as is known.
  [[nodiscard]] bool has_joined(worker_id worker) const {
    return knows(worker) && !expects(worker) && !attempt_.workers().stands_as<standing::ended>(worker);
  }
  /// Whether it is a joiner that repeats what the members do.
  [[nodiscard]] bool follows(worker_id worker) const {
    return attempt_.workers().stands_as<standing::following>(worker);
  }
  /// How many workers are missing that `start_more` has asked for.
  [[nodiscard]] std::uint32_t missing() const { return is<run_phase::running>() ? attempt_.missing() : 0; }
  /// The furthest step that any worker has applied.
  [[nodiscard]] step_id furthest() const { return attempt_.furthest(); }
  /// Where processes are that were started and have not ended.
  [[nodiscard]] std::vector<worker_place> occupied() const { return attempt_.workers().occupied(); }
  /// The plans that were accepted, one for each loop: joiners are compared with them.
  [[nodiscard]] const std::vector<run_plan>& accepted() const noexcept { return attempt_.plans().all(); }
  /// Whether the training function has a loop of its own, without boundaries that the coordinator could use.
  [[nodiscard]] bool has_own_loop() const { return attempt_.plans().has_own_loop(); }

 private:
  template <class Phase>
  [[nodiscard]] bool is() const noexcept {
    return std::holds_alternative<Phase>(phase_);
  }
  [[nodiscard]] failure_record record(const worker_record& who, error reason) const {
    return describe_failure(who, generation(), std::move(reason));
  }
  [[nodiscard]] bool within_budget();
  /// Whether no worker is active, and none has reported the run's result.
  [[nodiscard]] bool is_all_lost() const { return attempt_.workers().nobody_is_active() && !somebody_has_finished(); }

  run_actions end_or_restart_if_stuck(run_actions actions);
  run_actions with_replacement(run_actions actions);
  run_actions on_repeated_plan(worker_record& who, const run_plan& message);
  run_actions on_plan_of_joiner(worker_record& who, const run_plan& message);
  run_actions give_up_silent(time now);
  run_actions give_up_overdue_joiners(time now);
  run_actions lose_nodes(const std::map<std::uint32_t, std::string>& nodes);
  run_actions lose(const worker_standing& before, failure_record what, const std::string& why);
  run_actions lose_joiner(worker_record& who, const worker_standing& before, failure_record what, ended_by cause);
  run_actions give_up_joiner(worker_record& who, failure_record what);
  run_actions restart(std::optional<failure_record> what, std::string why);
  run_actions go_on_without(failure_record what, const std::string& why);
  run_actions on_throw(worker_record& who, const regroup_report& report);
  run_actions fail_once(worker_record& who, const worker_finished& message);
  run_actions fail_run(failure_record what, const std::string& why, std::optional<std::size_t> earlier_cause = {});
  run_actions release();
  run_actions conclude_failure(const std::string& why);
  run_actions go_on_failing(run_actions actions);
  run_actions conclude_end(const std::string& why);
  run_actions conclude_run(run_status status, error reason, std::string why);

  step_id first_step_;
  std::optional<resumed_plan> resumed_;
  host_comparison hosts_;
  failure_budget budget_;
  failure_log failures_;
  repeated_failures repeated_;
  std::string in_one_process_;
  run_attempt attempt_;
  std::variant<run_phase::running, run_phase::failing, run_phase::releasing, run_phase::over> phase_;
};

} // namespace troupe::actors
