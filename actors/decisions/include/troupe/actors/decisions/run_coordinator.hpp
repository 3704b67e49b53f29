#pragma once

#include <troupe/actors/decisions/placement.hpp>
#include <troupe/actors/decisions/regroup.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/commands.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/staging.hpp>
#include <troupe/messages/trainer.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace troupe::actors {

/// What a checkpoint that is resumed from says of its run; a new plan must not differ in any of it.
struct resumed_plan {
  std::uint64_t batch_samples = 0;
  std::string data_fingerprint;
  std::string tensors;
  /// JSON text of the numerics fingerprint.
  std::string numerics;
};

/// All workers are ready: send each its `begin_training`.
struct begin_all {
  bool operator==(const begin_all&) const = default;
};

/// A joiner is ready: send it its `begin_training`, without a place.
struct begin_joiner {
  worker_id worker;
  bool operator==(const begin_joiner&) const = default;
};

/// All plans agree: answer them.
struct accept_plans {
  run_plan plan;
  bool operator==(const accept_plans&) const = default;
};

/// A joiner's plan is that of the others: answer it.
struct accept_plan_of {
  worker_id worker;
  bool operator==(const accept_plan_of&) const = default;
};

/// The plans cannot be run: answer them with this error; one worker's only, if it is named.
struct refuse_plans {
  error reason;
  std::optional<worker_id> worker;
  bool operator==(const refuse_plans&) const = default;
};

/// This worker is none of the group that it reports to be of, or there will be no other: answer it so.
struct refuse_report {
  worker_id worker;
  error reason;
  bool operator==(const refuse_report&) const = default;
};

/// Send this to every worker.
struct send_command {
  control_command command;
  bool operator==(const send_command&) const = default;
};

/// These joiners get the state behind the back of the training: answer their reports with their places in a staging
/// group. Its ranks are the members of the generation, and then the joiners.
struct stage_joiners {
  /// The command that tells the others.
  std::uint64_t number = 0;
  std::uint32_t sources = 0;
  std::uint32_t joiners = 0;
  /// Whether not all of the group are on one node.
  bool across_nodes = false;
  /// Who is told, by rank.
  std::map<rank_id, worker_id> told;
  bool operator==(const stage_joiners&) const = default;
};

/// This joiner has come to a loop that the others have behind them: answer its report so. `evaluations` are those
/// before the next.
struct skip_loop {
  worker_id worker;
  std::vector<std::vector<double>> evaluations;
  bool operator==(const skip_loop&) const = default;
};

/// A staging group has lost a joiner: let nobody wait for it any more.
struct end_staging {
  std::uint64_t number = 0;
  bool operator==(const end_staging&) const = default;
};

/// Make every worker's collective operations fail.
struct abort_all {
  error reason;
  bool operator==(const abort_all&) const = default;
};

/// A member is gone and the others go on: make their collective operations fail, so that they report.
struct abort_generation {
  error reason;
  bool operator==(const abort_generation&) const = default;
};

/// All who are left have reported, but the next generation is not formed yet: say why.
struct hold {
  /// Whether there are too few workers, which is not waited for without limit; else it was asked for.
  bool for_workers = false;
  bool operator==(const hold&) const = default;
};

/// All who are left have reported: give each its place in the next generation.
struct form_generation {
  /// By rank, with the ranks of the new generation.
  std::vector<worker_place> places;
  regroup_decision decision;
  /// Those of `places` that get the state from the others.
  std::vector<worker_id> joiners;
  /// Those who have come since the last step that counts, and one who was there before: they compare their whole state.
  /// Empty if nobody has come.
  std::vector<worker_id> compared;
  /// Who has reported and is not needed any more.
  std::vector<worker_id> released;
  generation_record record;
  bool operator==(const form_generation&) const = default;
};

/// Start so many more where there is capacity, and tell by `on_started` which.
struct start_more {
  std::uint32_t count = 0;
  bool operator==(const start_more&) const = default;
};

/// Kill this worker: it is fenced, or of no use.
struct fence_worker {
  worker_id worker;
  std::string reason;
  bool operator==(const fence_worker&) const = default;
};

/// Nobody has the state any more: kill who is left, and begin again from the latest checkpoint (`on_restarted`).
struct restart_run {
  bool operator==(const restart_run&) const = default;
};

/// Let the process of a worker end that has returned, or failed, before the others.
struct release_one {
  worker_id worker;
  bool operator==(const release_one&) const = default;
};

/// All workers have returned: let their processes end.
struct release_all {
  bool operator==(const release_all&) const = default;
};

/// Tell people, and do nothing.
struct warn {
  bool operator==(const warn&) const = default;
};

/// The run is over: end what is left of it on the nodes, and tell whoever asked.
struct conclude {
  run_status status = run_status::failed;
  error reason;
  bool operator==(const conclude&) const = default;
};

/// The exit status in the `worker_ended` of a process that could not be started at all.
inline constexpr std::int32_t never_started = -1;

/// What to do, and why (for the log).
struct run_action {
  std::variant<begin_all, begin_joiner, accept_plans, accept_plan_of, refuse_plans, refuse_report, send_command,
               stage_joiners, end_staging, skip_loop, abort_all, abort_generation, hold, form_generation, start_more,
               fence_worker, restart_run, release_one, release_all, warn, conclude>
      what;
  std::string why;
};

using run_actions = std::vector<run_action>;

/// Decides what happens to a run: when it begins, whether the workers agree, what a failure means, who comes and goes,
/// when it is over. A plain class: no actor, socket or clock; the trainer carries messages to and from it. One instance
/// for each run; not thread-safe.
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
    /// The step that the run goes on from.
    step_id first_step = {};
    /// How long a process may take from its start until it joins.
    std::chrono::milliseconds start_timeout{30'000};
  };

  /// Any clock that does not go back.
  using time = std::chrono::steady_clock::time_point;

  explicit run_coordinator(settings config);

  // -- what workers say -----------------------------------------------------------------------------------------------
  [[nodiscard]] run_actions on_ready(const worker_ready& message);
  [[nodiscard]] run_actions on_plan(const run_plan& message);
  [[nodiscard]] run_actions on_finished(const worker_finished& message, time now = {});
  /// A worker's group is gone, or a joiner asks for a place.
  [[nodiscard]] run_actions on_report(const regroup_report& report, time now = {});
  /// A joiner that follows the others in a staging group has caught up.
  [[nodiscard]] run_actions on_caught_up(const caught_up& message);
  /// Notes how far a worker is, for failure records.
  void on_applied(worker_id worker, step_id step);
  /// What the beat of a worker says: one that changes `progress` on the way to its first loop is not given up.
  void on_sign_of_life(worker_id worker, std::uint64_t progress, time now);

  // -- what nodes say -------------------------------------------------------------------------------------------------
  [[nodiscard]] run_actions on_ended(const worker_ended& message, time now = {});
  /// A node's connection is gone, or it is silent: its workers are lost.
  [[nodiscard]] run_actions on_node_lost(std::uint32_t node, const std::string& why, time now = {});
  /// A node is going away. `capacity_elsewhere`: whether others can take in its workers.
  [[nodiscard]] run_actions on_node_leaving(std::uint32_t node, bool capacity_elsewhere);
  /// The time for replacements of leaving workers is over: they go without.
  [[nodiscard]] run_actions on_drain_timeout();
  /// There is capacity for more workers, perhaps.
  [[nodiscard]] run_actions on_capacity();
  /// What was started after `start_more`.
  void on_started(const std::vector<worker_place>& places, time now = {});
  /// What was started after `restart_run`, from the state of `first_step`.
  void on_restarted(const std::vector<worker_place>& places, std::optional<resumed_plan> resumed, step_id first_step);

  // -- what users say -------------------------------------------------------------------------------------------------
  [[nodiscard]] run_actions on_stop(const stop_request& message);
  [[nodiscard]] run_actions on_checkpoint_request();
  [[nodiscard]] run_actions on_resize(std::uint32_t workers);
  [[nodiscard]] run_actions on_pause();
  [[nodiscard]] run_actions on_resume();

  // -- what the clock says --------------------------------------------------------------------------------------------
  /// Not all workers have joined within the limit.
  [[nodiscard]] run_actions on_start_timeout(time now = {});
  /// The survivors of a failure, or released workers, took longer than the grace period.
  [[nodiscard]] run_actions on_grace_timeout();
  /// To be called several times a second: joiners that come about the same time are let in together, and one that
  /// does not join in time is given up.
  [[nodiscard]] run_actions on_tick(time now);
  /// There have been too few workers for too long.
  [[nodiscard]] run_actions on_hold_timeout();
  /// All ranks have waited in collective operations, or for the driver, for too long: `why` says which and where.
  [[nodiscard]] run_actions on_group_hang(const std::string& why, time now = {});

  /// In the order in which they were told. Those that ended the run are last, their cause first among them.
  [[nodiscard]] const std::vector<failure_record>& failures() const noexcept { return failures_; }
  [[nodiscard]] const std::string& state_sha256() const noexcept { return state_sha256_; }
  /// The last step that all workers have applied, known when they finished.
  [[nodiscard]] step_id final_step() const noexcept { return final_step_; }
  [[nodiscard]] bool exact_hosts() const noexcept { return exact_hosts_; }
  /// The last that was formed, from 1; greater than any that was given up.
  [[nodiscard]] generation_id generation() const noexcept { return generation_; }
  [[nodiscard]] std::uint32_t attempt() const noexcept { return attempt_; }
  [[nodiscard]] bool over() const noexcept { return phase_ == phase::over; }
  /// Whether a training function has returned: the others are about to.
  [[nodiscard]] bool somebody_has_finished() const noexcept { return end_known_; }
  [[nodiscard]] bool starting() const noexcept { return phase_ == phase::starting; }
  [[nodiscard]] bool training() const noexcept { return phase_ == phase::training; }
  /// Whether workers that report will hear of a next generation.
  [[nodiscard]] bool goes_on() const noexcept { return phase_ == phase::training || phase_ == phase::regrouping; }
  /// Whether all have reported, and the next generation waits for `on_resume` or more workers.
  [[nodiscard]] bool held() const noexcept { return phase_ == phase::regrouping && held_; }
  /// Who has not reported yet, for people; empty unless a generation is to be formed.
  [[nodiscard]] std::string awaited_reports() const;
  /// Whether it is one of this attempt's workers; and of those whose processes are still to join.
  [[nodiscard]] bool knows(worker_id worker) const { return members_.contains(worker); }
  [[nodiscard]] bool expects(worker_id worker) const;
  /// Whether it is a joiner that repeats what the others do.
  [[nodiscard]] bool follows(worker_id worker) const;
  /// The furthest step that anybody has applied.
  [[nodiscard]] step_id furthest() const noexcept { return furthest_; }
  /// Where processes are that were started and have not ended.
  [[nodiscard]] std::vector<worker_place> occupied() const;
  /// The plans that were accepted, one for each loop: joiners are compared with them.
  [[nodiscard]] const std::vector<run_plan>& accepted() const noexcept { return accepted_; }
  /// Whether the training function has a loop of its own, without boundaries that the coordinator could use.
  [[nodiscard]] bool has_own_loop() const { return !accepted_.empty() && accepted_.back().batch_samples == 0; }
  /// Whether something has gone wrong or all is done, so that only a grace period is left.
  [[nodiscard]] bool in_grace() const noexcept { return phase_ == phase::failing || phase_ == phase::releasing; }

 private:
  enum class phase { starting, training, regrouping, failing, releasing, over };

  enum class standing {
    /// Its process was started.
    started,
    /// It has joined, and waits for the beginning.
    ready,
    /// A joiner, on its way to its first loop.
    preparing,
    /// A joiner that asks for a place.
    waiting,
    /// A joiner that is given the state while the others train on, and applies what they reduce.
    following,
    member,
  };

  struct member {
    worker_place place;
    standing stands = standing::started;
    /// When its process was started, it last did something on the way to its first loop, or it asked for a place.
    time since = {};
    std::uint64_t progress = 0;
    std::string host;
    std::uint32_t pid = 0;
    std::string numerics;
    bool finished = false;
    bool ended = false;
    /// Its process was ended from outside.
    bool killed = false;
    /// Is to go at the next boundary.
    bool leaving = false;
    /// And does not stay if others are lost.
    bool goes_with_node = false;
    /// Is gone from the run, as it should be: the end of its process is no failure.
    bool let_go = false;
    /// Has been in a generation.
    bool has_place = false;
    /// Of one that follows: whether it is where the others are, or will be in a moment.
    bool caught_up = false;
    /// How often it was given the state so.
    std::uint32_t stagings = 0;
    /// Of a joiner: the loop that it has come to.
    std::uint32_t loop = 0;
    step_id applied;
    /// The step after which it came.
    step_id came_after;
    std::optional<run_plan> plan;
    std::optional<regroup_report> report;

    /// Whether it takes part in what is to come.
    [[nodiscard]] bool is_left() const noexcept { return stands == standing::member && !finished && !ended; }
    [[nodiscard]] bool is_coming() const noexcept { return stands != standing::member && !finished && !ended; }
  };

  member* find(worker_id worker);
  template <class Predicate>
  bool all(Predicate predicate) const;
  template <class Predicate>
  std::uint32_t count(Predicate predicate) const;
  [[nodiscard]] bool nobody_is_left() const;
  [[nodiscard]] bool all_have_ended() const;
  failure_record record(const member& who, error reason) const;
  void note_progress(step_id step);
  bool within_budget(time now);

  run_actions lose(member& who, failure_record what, const std::string& why, time now);
  run_actions lose_joiner(member& who, failure_record what, bool from_outside);
  run_actions restart(std::optional<failure_record> what, const std::string& why);
  run_actions let_all_go(const std::vector<member*>& left);
  run_actions fail_once(member& who, const worker_finished& message, time now);
  run_actions replace_missing();
  run_actions with_replacement(run_actions actions);
  run_actions let_joiners_in(time now);
  [[nodiscard]] bool takes_state_in_generation(const member& who) const;
  /// "worker 3 (rank 3), worker 4 (rank 4) join", for people.
  [[nodiscard]] static std::string describe_joining(const std::vector<member*>& joiners);
  run_actions stage(const std::vector<member*>& joiners, const std::string& names);
  run_actions give_up_staging(const member& lost);
  run_actions wait_for_place(member& who, time now);
  run_actions on_report_of_follower(member& who, const regroup_report& report, time now);
  run_actions stop_waiting_for_followers(time now);
  run_actions ask_for_regroup(const std::string& why);
  run_actions ask_all_to_leave();
  void keep_who_is_needed();
  run_actions regroup(const std::string& why, const error& reason);
  run_actions form_when_all_have_reported();
  [[nodiscard]] bool is_held();
  [[nodiscard]] static std::vector<worker_id> choose_compared(const std::vector<member*>& all, step_id commit_point);
  std::vector<worker_place> give_places(std::vector<member*> who);
  run_actions fail_run(failure_record what, const std::string& why);
  run_actions conclude_failure(const std::string& why);
  run_actions conclude_run(run_status status, error reason, std::string why);
  run_actions all_finished();
  run_actions accept(const run_plan& plan);
  run_actions on_plan_of_joiner(member& who, const run_plan& message);
  std::optional<error> compare_with_first(const member& joiner) const;
  std::optional<error> find_difference() const;

  settings config_;
  phase phase_ = phase::starting;
  generation_id generation_{1};
  std::uint32_t attempt_ = 1;
  std::map<worker_id, member> members_;
  /// How many are wanted now.
  std::uint32_t wanted_;
  std::vector<failure_record> failures_;
  /// The first of those that ended the run.
  std::size_t fatal_ = 0;
  /// A failure before those that turned out to be their cause.
  std::optional<std::size_t> earlier_cause_;
  /// When the failures of the window happened.
  std::deque<time> recent_;
  /// Whether the last of them was told by a worker, and what is behind it not yet.
  bool found_by_workers_ = false;
  /// Joiners that ended before they had a place, since the last that got one.
  std::uint32_t failed_joiners_ = 0;
  /// Attempts in a row in which no step was applied.
  std::uint32_t fruitless_attempts_ = 0;
  /// Whether the attempt before ended because workers did not join.
  bool joined_too_late_ = false;
  /// After which step no rank has moved, the last time that happened.
  std::optional<step_id> stood_after_;
  /// The furthest step that anybody has applied, and where this attempt began.
  step_id furthest_;
  step_id attempt_began_;
  /// The steps after which workers have failed by themselves, and the index of the first failure for each.
  std::map<step_id, std::size_t> failed_after_;
  std::vector<run_plan> accepted_;
  std::uint64_t commands_ = 0;
  /// The checkpoint behind which all leave, as the number of its command; 0 if that was not asked for.
  std::uint64_t drain_ = 0;
  /// The last staging group; number 0 before the first.
  stage_joiners staging_;
  /// Since when the others stand at a boundary and wait for joiners that are about to come there.
  std::optional<time> followers_awaited_;
  /// A regroup was commanded in this generation.
  bool regroup_asked_ = false;
  /// This generation was aborted: its members do not come to a boundary by themselves.
  bool aborted_ = false;
  bool paused_ = false;
  bool held_ = false;
  bool stop_sent_ = false;
  bool stopped_ = false;
  bool exact_hosts_ = true;
  bool plans_refused_ = false;
  /// Why the next generation is formed.
  std::string cause_;
  /// Whether one has finished: how it ended is what the others are compared with.
  bool end_known_ = false;
  std::string state_sha256_;
  step_id final_step_;
};

} // namespace troupe::actors
