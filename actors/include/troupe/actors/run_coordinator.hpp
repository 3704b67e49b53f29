#pragma once

#include <troupe/actors/placement.hpp>
#include <troupe/actors/regroup.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>
#include <troupe/messages.hpp>
#include <troupe/result.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
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

/// All plans agree: answer them.
struct accept_plans {
  run_plan plan;
  bool operator==(const accept_plans&) const = default;
};

/// The plans cannot be run: answer them with this error.
struct refuse_plans {
  error reason;
  bool operator==(const refuse_plans&) const = default;
};

/// Send this to every worker.
struct send_command {
  control_command command;
  bool operator==(const send_command&) const = default;
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

/// All who are left have reported: give each its place in the next generation.
struct form_generation {
  /// By rank, with the ranks of the new generation.
  std::vector<worker_place> places;
  regroup_decision decision;
  bool operator==(const form_generation&) const = default;
};

/// All workers have returned: let their processes end.
struct release_all {
  bool operator==(const release_all&) const = default;
};

/// The run is over: end what is left of it on the nodes, and tell whoever asked.
struct conclude {
  run_status status = run_status::failed;
  error reason;
  bool operator==(const conclude&) const = default;
};

/// What to do, and why (for the log).
struct run_action {
  std::variant<begin_all, accept_plans, refuse_plans, send_command, abort_all, abort_generation, form_generation,
               release_all, conclude>
      what;
  std::string why;
};

using run_actions = std::vector<run_action>;

/// Decides what happens to a run: when it begins, whether the workers agree, what a failure means, when it is over. A
/// plain class: no actor, socket or clock; the trainer carries messages to and from it. One instance for each run; not
/// thread-safe.
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
  };

  /// Any clock that does not go back.
  using time = std::chrono::steady_clock::time_point;

  explicit run_coordinator(settings config);

  [[nodiscard]] run_actions on_ready(const worker_ready& message);
  [[nodiscard]] run_actions on_plan(const run_plan& message);
  [[nodiscard]] run_actions on_finished(const worker_finished& message);
  [[nodiscard]] run_actions on_ended(const worker_ended& message, time now = {});
  /// A node's connection is gone: its workers are lost.
  [[nodiscard]] run_actions on_node_lost(std::uint32_t node, const std::string& address, time now = {});
  /// A worker's group is gone. `report.generation` is the last that was formed.
  [[nodiscard]] run_actions on_report(const regroup_report& report, time now = {});
  [[nodiscard]] run_actions on_stop(const stop_request& message);
  [[nodiscard]] run_actions on_checkpoint_request();
  /// Not all workers have joined within the limit.
  [[nodiscard]] run_actions on_start_timeout();
  /// The survivors of a failure, or released workers, took longer than the grace period.
  [[nodiscard]] run_actions on_grace_timeout();
  /// Notes how far a worker is, for failure records.
  void on_applied(worker_id worker, step_id step);

  /// In the order in which they were told. Those that ended the run are last, their cause first among them.
  [[nodiscard]] const std::vector<failure_record>& failures() const noexcept { return failures_; }
  [[nodiscard]] const std::string& state_sha256() const noexcept { return state_sha256_; }
  /// The last step that all workers have applied, known when they finished.
  [[nodiscard]] step_id final_step() const noexcept { return final_step_; }
  [[nodiscard]] bool exact_hosts() const noexcept { return exact_hosts_; }
  [[nodiscard]] bool over() const noexcept { return phase_ == phase::over; }
  [[nodiscard]] bool training() const noexcept { return phase_ == phase::training; }
  /// Whether workers that report will hear of a next generation.
  [[nodiscard]] bool goes_on() const noexcept { return phase_ == phase::training || phase_ == phase::regrouping; }
  /// Who has not reported yet, for people; empty unless a generation is to be formed.
  [[nodiscard]] std::string awaited_reports() const;
  /// Whether something has gone wrong or all is done, so that only a grace period is left.
  [[nodiscard]] bool in_grace() const noexcept { return phase_ == phase::failing || phase_ == phase::releasing; }

 private:
  enum class phase { starting, training, regrouping, failing, releasing, over };

  struct member {
    worker_place place;
    std::string host;
    std::string numerics;
    bool ready = false;
    bool finished = false;
    bool ended = false;
    step_id applied;
    std::optional<run_plan> plan;
    std::optional<regroup_report> report;

    /// Whether it takes part in what is to come.
    [[nodiscard]] bool is_left() const noexcept { return !finished && !ended; }
  };

  member* find(worker_id worker);
  template <class Predicate>
  bool all(Predicate predicate) const;
  failure_record record(const member& who, error reason) const;
  bool within_budget(time now);
  run_actions lose(failure_record what, const std::string& why, time now);
  run_actions regroup(const std::string& why, const error& reason);
  run_actions form_when_all_have_reported();
  run_actions fail_run(failure_record what, const std::string& why);
  run_actions conclude_failure(const std::string& why);
  run_actions conclude_run(run_status status, error reason, std::string why);
  run_actions all_finished();
  std::optional<error> compare_with_first(const member& newcomer) const;
  std::optional<error> compare_plans() const;
  std::optional<error> compare_with_checkpoint(const run_plan& plan) const;

  settings config_;
  phase phase_ = phase::starting;
  std::map<worker_id, member> members_;
  std::vector<failure_record> failures_;
  /// The first of those that ended the run.
  std::size_t fatal_ = 0;
  /// When the failures of the window happened.
  std::deque<time> recent_;
  /// Whether the last of them was told by a worker, and what is behind it not yet.
  bool found_by_workers_ = false;
  std::uint64_t commands_ = 0;
  bool stop_sent_ = false;
  bool stopped_ = false;
  bool exact_hosts_ = true;
  bool plans_refused_ = false;
  /// Whether one has finished: how it ended is what the others are compared with.
  bool end_known_ = false;
  std::string state_sha256_;
  step_id final_step_;
};

} // namespace troupe::actors
