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

/// What `run_coordinator` wants done: the trainer carries it out.
namespace troupe::actors {

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

/// What to do, and why (for the log).
struct run_action {
  std::variant<begin_all, begin_joiner, accept_plans, accept_plan_of, refuse_plans, refuse_report, send_command,
               stage_joiners, end_staging, skip_loop, abort_all, abort_generation, hold, form_generation, start_more,
               fence_worker, restart_run, release_one, release_all, warn, conclude>
      what;
  std::string why;
};

using run_actions = std::vector<run_action>;

inline void append(run_actions& to, run_actions more) {
  to.insert(to.end(), std::make_move_iterator(more.begin()), std::make_move_iterator(more.end()));
}

} // namespace troupe::actors
