#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/commands.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/staging.hpp>
#include <troupe/types.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

/// The actions of `worker_protocol`, which the session of a worker carries out. The counterpart of `run_actions.hpp`.
namespace troupe::actors {

/// Form the group of this generation, share the last evaluation, exchange the state, and call `on_formed`.
struct form_group {
  member_place place;
};

/// The generation was aborted before this worker heard of it: report again.
struct report_again {};

/// A joiner: form this staging group, take the state over it, and repeat the members' steps.
struct follow_members {
  staging_place group;
};

/// A joiner: return from this loop, which the members have completed.
struct skip_loop_body {};

/// The run continues without this worker: leave the training function.
struct leave_run {};

/// The run ends: save the state once it is that of `committed`, and leave the training function.
struct save_last_copy {
  error reason;
};

/// The action after an answer to a report, and why (for the log).
struct worker_action {
  std::variant<form_group, report_again, follow_members, skip_loop_body, leave_run, save_last_copy> what;
  std::string why;
};

/// What follows a step, as far as the training function decides it.
enum class step_end : std::uint8_t {
  /// The next step.
  goes_on,
  /// It was the loop's last.
  last_step,
  /// The run stops here by its configuration (`run_config::stop_after`), as by a `stop_command`.
  stops,
  /// Nothing: the training function has finished the run with this step.
  finishes_run,
};

/// Consider a checkpoint: a decision that `checkpoint_agreement` makes with the checkpoints that are in flight.
struct consider_checkpoint {
  /// Nothing comes after this boundary.
  bool is_last = false;
  /// A `checkpoint_command` is among those agreed on.
  bool is_asked = false;
  /// All members regroup at this boundary.
  bool regroups = false;
  /// A custom loop saves here.
  bool is_due = false;
  /// The training function has finished the run with this step.
  bool finishes_run = false;
};

/// Give joiners the state over a staging group while training continues, if `command.generation` is still the worker's.
struct stage_state {
  std::uint64_t number = 0;
  stage_command command;
};

/// Report, and form the next generation. Only if `generation` is still the worker's.
struct regroup_here {
  generation_id generation;
};

/// Return from the loop: a stop was asked for.
struct stop_here {};

struct boundary_action {
  std::variant<consider_checkpoint, stage_state, regroup_here, stop_here> what;
  std::string why;
};

/// Commands with numbers in (after, up_to] take effect at this boundary.
struct command_range {
  std::uint64_t after = 0;
  std::uint64_t up_to = 0;
};

/// What the barrier of a step did.
enum class barrier_outcome : std::uint8_t {
  /// The step is committed on this worker: it counts as applied.
  committed,
  /// The step is not committed: the digests of the replicas differ.
  replicas_differ,
  /// An abort came first: the decision about the next generation tells whether the step counts.
  fenced,
  /// The ranks are at different steps.
  steps_differ,
};

/// The words that ride on the barrier of a step; each becomes its maximum over the ranks.
struct barrier_words {
  enum : std::size_t { commands, digest, inverted_digest, step, inverted_step, in_flight, owed, count };
  std::array<std::uint64_t, count> values{};
};

/// An evaluation that is due.
struct evaluate_now {
  /// Which one it is, from 1.
  std::uint64_t number = 0;
};

/// An evaluation that the members did before this joiner came.
struct evaluation_known {
  std::vector<double> values;
};

/// A joiner that repeats the members' steps: the next frame from them has the result.
struct evaluation_from_members {};

using evaluation_plan = std::variant<evaluate_now, evaluation_known, evaluation_from_members>;

/// What the worker's session must end after an abort.
enum class abort_effect : std::uint8_t {
  /// It is of a generation that is over, or this worker has no place yet.
  none,
  /// The staging group that this joiner is in is over.
  ends_staging,
  /// This worker's group is over: its operations must fail.
  ends_group,
};

} // namespace troupe::actors
