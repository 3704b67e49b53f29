#pragma once

#include <troupe/actors/decisions/failure_budget.hpp>
#include <troupe/actors/decisions/placement.hpp>
#include <troupe/actors/decisions/run_course.hpp>
#include <troupe/inspect.hpp>
#include <troupe/messages/commands.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

/// A member of a generation, or of the next.
struct formed_member {
  worker_place place;
  /// The step after which it got the state; nothing if it has only asked for a place.
  std::optional<step_id> came_after;
  /// The loop of the training function that it had reached as a joiner.
  std::uint32_t loop = 0;

  bool operator==(const formed_member&) const = default;
};

TROUPE_INSPECT(formed_member, place, came_after, loop)

/// The state that the next driver needs of a run. Written to the run's journal before any of it takes effect. A new
/// coordinator continues from it; the workers report what has happened since.
struct control_state {
  std::uint32_t attempt = 1;
  /// The generation that was formed last, or may have been.
  generation_id generation;
  /// The step that this attempt began at.
  step_id began_at;
  /// The members and possible members of that generation, by rank; empty before the first is formed.
  std::vector<formed_member> members;
  /// The plans that were accepted, one for each loop.
  std::vector<run_plan> plans;
  /// The number of the last command.
  std::uint64_t commands = 0;
  /// Commands on which the members of the previous generation may not have agreed, and later ones.
  std::vector<control_command> outstanding;
  /// How many workers are wanted.
  std::uint32_t workers = 1;
  run_course::request asked = run_course::request::none;
  failures_in_row failures;
  /// JSON text of the numerics fingerprint of the first worker; empty before it has joined.
  std::string numerics;

  bool operator==(const control_state&) const = default;
};

TROUPE_INSPECT(control_state, attempt, generation, began_at, members, plans, commands, outstanding, workers, asked,
               failures, numerics)

/// The processes of a run whose driver has ended, as far as they answer.
struct survivors {
  /// The kept state, with the workers that have got places since.
  control_state state;
  /// Workers without a place.
  std::vector<worker_place> others;
};

/// Sorts the processes that live, by node, with their last heartbeats: the last word on a generation is a worker's, for
/// the journal may not have been writable. Pure.
[[nodiscard]] survivors sort_survivors(control_state kept,
                                       const std::map<std::uint32_t, std::vector<worker_beat>>& living);

/// Whether this process may have the run's state.
[[nodiscard]] bool may_be_member(const control_state& kept, const worker_beat& of);

} // namespace troupe::actors
