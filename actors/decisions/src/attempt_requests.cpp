// Requests of users and nodes to an attempt: capacity, drains, sizes, pauses, stops and checkpoints.
#include <troupe/actors/decisions/run_attempt.hpp>

namespace troupe::actors {

run_actions run_attempt::on_capacity() {
  joiner_budget_.reset();
  return replace_missing();
}

run_actions run_attempt::on_node_leaving(std::uint32_t node, bool capacity_elsewhere) {
  auto is_there = [node](const worker_record& x) { return x.place.node == node && (x.is_active() || x.is_joining()); };
  if (!workers_.any(is_there))
    return {};
  if (plans_.has_own_loop())
    return {{warn{},
             "a node is going away, and the training function has a custom loop, which no worker can leave: with "
             "the node its workers are lost, and the run starts again from its latest checkpoint"}};
  run_actions actions;
  for (auto& [id, who] : workers_) {
    if (!is_there(who))
      continue;
    who.leaves = departure::with_node;
    // A joiner has nothing to hand over.
    if (who.is_joining())
      append(actions, dismiss(who, "its node is going away", "its node is going away"));
  }
  // Surplus members stay instead.
  workers_.keep_needed(course_.workers);
  if (capacity_elsewhere && config_.failure.replace_lost) {
    // The workers leave when their replacements have joined, or at the drain timeout.
    actions.push_back({warn{}, "a node takes no more workers: those that it has are replaced"});
    append(actions, replace_missing());
  } else {
    // If no worker stays, the run is saved in a checkpoint and waits for capacity.
    append(actions, workers_.staying() > 0 ? ask_for_regroup("workers leave with their node") : ask_all_to_leave());
  }
  // Members may have waited for one of these joiners.
  append(actions, form_when_all_have_reported());
  return actions;
}

run_actions run_attempt::on_node_resumed(std::uint32_t node) {
  auto stays = false;
  for (auto& [id, who] : workers_)
    if (who.place.node == node && who.leaves == departure::with_node) {
      who.leaves = departure::none;
      stays = true;
    }
  // Replacements that have come meanwhile may be too many.
  return stays ? resize() : on_capacity();
}

/// Has all members leave at a boundary behind a checkpoint: the barrier there has agreed on both commands.
run_actions run_attempt::ask_all_to_leave() {
  auto actions = ask_for_regroup("the run's last node goes away");
  if (!actions.empty()) {
    append(actions, take_checkpoint());
    state_.require_checkpoint(commands_);
  }
  return actions;
}

run_actions run_attempt::on_drain_timeout() {
  if (workers_.leaving() == 0)
    return {};
  return workers_.staying() > 0 ? ask_for_regroup("workers leave with their node") : ask_all_to_leave();
}

run_actions run_attempt::resize() {
  joiner_budget_.reset();
  if (is_starting())
    return {};
  // Members that were to leave may stay after all, unless their node goes away; the last ranks leave first.
  workers_.keep_needed(course_.workers);
  const auto members = workers_.staying();
  workers_.mark_surplus(course_.workers);
  // Joiners are dismissed before any member leaves.
  run_actions actions;
  auto there = members;
  for (auto& [id, who] : workers_)
    if (who.is_joining() && ++there > course_.workers)
      append(actions, dismiss(who, "it is no longer needed", "fewer workers are wanted"));
  if (members <= course_.workers) {
    append(actions, replace_missing());
    // A generation that was held may have enough workers now.
    append(actions, form_when_all_have_reported());
  } else {
    append(actions, is_regrouping() ? form_when_all_have_reported() : ask_for_regroup("fewer workers are wanted"));
  }
  return actions;
}

run_actions run_attempt::pause() {
  course_.asked = run_course::request::pause;
  return ask_for_regroup("the run is paused");
}

run_actions run_attempt::resume() {
  course_.asked = run_course::request::none;
  state_.resume("the run was paused");
  return form_when_all_have_reported();
}

run_actions run_attempt::stop() {
  course_.asked = run_course::request::stop;
  run_actions actions{command(stop_command{}, "a stop is requested")};
  // Members that are held do one more step, and stop after it.
  append(actions, form_when_all_have_reported());
  return actions;
}

run_actions run_attempt::take_checkpoint() {
  if (plans_.has_own_loop())
    return {{warn{}, "the training function has a custom loop, and takes its checkpoints itself, with its reports"}};
  return {command(checkpoint_command{}, "a checkpoint is requested")};
}

} // namespace troupe::actors
