#pragma once

#include <troupe/actors/decisions/placement.hpp>
#include <troupe/actors/decisions/regroup.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/commands.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>

#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

/// The actions of `run_coordinator`. The trainer carries them out in order, perhaps later, so actions for a generation
/// name it.
namespace troupe::actors {

/// All workers of this attempt are ready: send each its `begin_training`, unless another attempt has begun since.
struct begin_all {
  std::uint32_t attempt = 1;
  bool operator==(const begin_all&) const = default;
};

/// A joiner is ready: send it its `begin_training`, without a place.
struct begin_joiner {
  worker_id worker;
  /// Of the loops whose plans are accepted.
  std::vector<std::vector<std::vector<double>>> evaluations;
  bool operator==(const begin_joiner&) const = default;
};

/// All plans agree: answer them.
struct accept_plans {
  run_plan plan;
  generation_id generation;
  bool operator==(const accept_plans&) const = default;
};

/// A joiner has the same plan as the members: answer it.
struct accept_plan_of {
  worker_id worker;
  bool operator==(const accept_plan_of&) const = default;
};

/// The plans cannot be run: answer all of them with this error, or only that of `worker`.
struct refuse_plans {
  error reason;
  std::optional<worker_id> worker;
  bool operator==(const refuse_plans&) const = default;
};

/// Answer this worker's report with an error: it does not belong to the generation that it names, or there will be no
/// next one.
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

/// These joiners get the state while the members train on: answer their reports with their places in a staging group.
/// Its ranks are the members of the generation, then the joiners.
struct stage_joiners {
  /// What tells the members, and its number.
  stage_command command;
  std::uint64_t number = 0;
  /// How many members there are.
  std::uint32_t sources = 0;
  /// The joiners to answer, by rank.
  std::map<rank_id, worker_id> to_answer;
  bool operator==(const stage_joiners&) const = default;
};

/// This joiner has reached a loop that the members have completed: answer its report so. `evaluations` are those before
/// the next loop.
struct skip_loop {
  worker_id worker;
  std::vector<std::vector<double>> evaluations;
  bool operator==(const skip_loop&) const = default;
};

/// A joiner has left a staging group: fail the waits of its other members.
struct end_staging {
  std::uint64_t number = 0;
  generation_id generation;
  bool operator==(const end_staging&) const = default;
};

/// The run ends, or restarts: answer this worker's report so that it saves the state first.
struct save_state {
  worker_id worker;
  /// Why the run ends, or why this worker has failed.
  error reason;
  /// The step whose state it saves.
  step_id step;
  bool operator==(const save_state&) const = default;
};

/// The run ends: make every worker's collective operations fail, so that all report.
struct abort_all {
  error reason;
  bool operator==(const abort_all&) const = default;
};

/// A member is lost and the others go on: make their collective operations fail, so that they report.
struct abort_generation {
  error reason;
  generation_id generation;
  bool operator==(const abort_generation&) const = default;
};

/// The run is on hold: notify users.
struct hold {
  enum class cause : std::uint8_t {
    /// All members have reported, and the next generation is not formed before `run_coordinator::on_resume`.
    pause,
    /// The same, with a time limit: `run_coordinator::on_hold_timeout`.
    too_few_workers,
    /// No worker with the state can be reached. The workers' processes are left alone.
    unreachable,
  };
  cause why = cause::pause;
  bool operator==(const hold&) const = default;
};

/// All members have reported: answer each with its place in the next generation.
struct form_generation {
  /// By rank, with the ranks of the new generation.
  std::vector<worker_place> places;
  regroup_decision decision;
  /// Workers in `places` that get the state from the others.
  std::vector<worker_id> joiners;
  /// Workers that joined after the last committed step, and one earlier member: they compare their whole state. Empty
  /// if none has joined.
  std::vector<worker_id> compared;
  /// Workers that have reported and leave now.
  std::vector<worker_id> released;
  generation_record record;
  bool operator==(const form_generation&) const = default;
};

/// Start up to this many more workers where there is capacity, but no more than `run_coordinator::missing`, and report
/// them with `on_started`.
struct start_more {
  std::uint32_t count = 0;
  bool operator==(const start_more&) const = default;
};

/// Kill this worker: it is fenced, or no longer needed.
struct fence_worker {
  worker_id worker;
  std::string reason;
  bool operator==(const fence_worker&) const = default;
};

/// The run continues without this node, which may still live: its workers are ended when it answers.
struct give_up_node {
  std::uint32_t node = 0;
  bool operator==(const give_up_node&) const = default;
};

/// The data network between this node and others is cut: place no workers there for a while.
struct avoid_node {
  std::uint32_t node = 0;
  bool operator==(const avoid_node&) const = default;
};

/// No worker with the state is left: kill the rest, and start again from the latest checkpoint (`on_restarted`).
struct restart_run {
  bool operator==(const restart_run&) const = default;
};

/// Let the process of this worker end: it has failed or leaves, and the others go on.
struct release_one {
  worker_id worker;
  bool operator==(const release_one&) const = default;
};

/// All workers have returned: let their processes end.
struct release_all {
  bool operator==(const release_all&) const = default;
};

/// Tell users; do nothing else.
struct warn {
  bool operator==(const warn&) const = default;
};

/// The run is over: end the rest of it on the nodes, and answer the `fit_request`.
struct conclude {
  run_status status = run_status::failed;
  error reason;
  bool operator==(const conclude&) const = default;
};

/// What to do, and why (for the log).
struct run_action {
  std::variant<begin_all, begin_joiner, accept_plans, accept_plan_of, refuse_plans, refuse_report, send_command,
               stage_joiners, end_staging, skip_loop, abort_all, abort_generation, hold, form_generation, start_more,
               fence_worker, give_up_node, avoid_node, restart_run, release_one, release_all, warn, save_state,
               conclude>
      what;
  std::string why;
};

using run_actions = std::vector<run_action>;

inline void append(run_actions& to, run_actions more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

} // namespace troupe::actors
