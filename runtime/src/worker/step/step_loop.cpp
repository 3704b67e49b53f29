#include "worker/step/step_loop.hpp"

#include <troupe/actors/decisions/staging_place.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <fmt/format.h>
#include <span>
#include <utility>

namespace troupe {

namespace {

using namespace std::chrono_literals;

/// How long a rank waits for a command that another rank has already seen.
constexpr auto command_limit = 10s;

/// Whether a joiner may ask for the state again. Otherwise it is no accident.
bool is_loss_of_staging(const error& reason) {
  return reason.code != errc::mismatch && reason.code != errc::invalid_argument && reason.code != errc::user_error &&
         reason.code != errc::internal;
}

} // namespace

step_loop::end step_loop::run() {
  const auto& settings = session_.settings();
  const auto stop_after = settings.stop_after == 0 ? plan_.steps : settings.stop_after;
  const auto last = std::min(plan_.steps, stop_after);
  const auto& protocol = session_.protocol();
  // Unless a step says otherwise.
  auto result = last < plan_.steps ? end::stopped : end::completed;
  for (auto id = step_id{protocol.step().value + 1}; id.value <= last && !protocol.is_finished(); ++id.value) {
    driver_.run(id, body_);
    session_.note_applied(id);
    result = end_step(id, driver_.finishes_run()    ? actors::step_end::finishes_run
                          : id.value == plan_.steps ? actors::step_end::last_step
                          : id.value == stop_after  ? actors::step_end::stops
                                                    : actors::step_end::goes_on);
    if (result == end::stopped)
      break;
  }
  return result;
}

std::string step_loop::describe_checks() const {
  const auto& checker = driver_.checker();
  const auto& frameworks = session_.frameworks();
  return fmt::format("{} shards were computed twice, {} of them by another worker, with equal bits{}{}",
                     checker.checked(), checker.checked_elsewhere(), frameworks.empty() ? "" : "; ", frameworks);
}

// -- the boundary between two steps -----------------------------------------------------------------------------------

std::vector<control_command> step_loop::take_due_commands() {
  const auto due = session_.protocol().due_commands();
  if (!due)
    return {};
  auto commands = session_.commands().take(due->after, due->up_to, command_limit);
  if (commands.empty())
    throw exception{errc::timed_out,
                    fmt::format("command {}, which another rank has, has not come from the driver within {} s",
                                due->up_to, command_limit.count())};
  return commands;
}

/// A rank that has decided otherwise is in its next step, and makes another call. Members that are lost meanwhile take
/// no part in the decision: in the next generation those that are left ask each other again, also where they had
/// agreed, because others may not have.
void step_loop::agree_to_finish(step_id step) {
  for (;;) {
    const auto mine = std::array{step.value};
    auto all = [&] {
      const auto scope = session_.in_collective();
      return session_.members().communicator().all_gather_bytes(std::as_bytes(std::span{mine}));
    }();
    if (all)
      return;
    if (!session_.is_loss_of_group(all.error()))
      throw exception{
          all.error().code,
          fmt::format("step.finish() was called on rank {} in step {}, and not on all ranks: the decision has "
                      "to be the same on all ({})",
                      session_.place().rank, step, all.error().message)};
    session_.regroup(std::move(all.error()));
  }
}

step_loop::end step_loop::end_step(step_id step, actors::step_end how) {
  auto& members = session_.members();
  members.leave_if_asked();
  if (how == actors::step_end::finishes_run)
    agree_to_finish(step);
  const auto commands = take_due_commands();
  const auto actions = members.locked()->on_boundary(commands, how);
  auto result = end::completed;
  // The group may be lost on the way: what was agreed on in the generation before is void then.
  for (const auto& action : actions) {
    if (const auto* what = std::get_if<actors::consider_checkpoint>(&action.what))
      save(step, *what);
    if (const auto* joiners = std::get_if<actors::stage_state>(&action.what))
      stage(step, *joiners);
    if (const auto* here = std::get_if<actors::regroup_here>(&action.what);
        here != nullptr && here->generation == session_.protocol().generation()) {
      members.stager().push_end(step, session_.protocol().commands_agreed(), session_.protocol().evaluations());
      members.regroup_between_steps();
    }
    if (std::holds_alternative<actors::stop_here>(action.what))
      result = end::stopped;
  }
  return result;
}

void step_loop::save(step_id step, const actors::consider_checkpoint& what) {
  const auto began = std::chrono::steady_clock::now();
  session_.save_at_boundary(step, what, [this, step, &what](error reason) {
    if (!session_.is_loss_of_group(reason))
      throw exception{std::move(reason)};
    session_.regroup(std::move(reason));
    if (what.finishes_run)
      agree_to_finish(step);
  });
  driver_.note_checkpoint(std::chrono::steady_clock::now() - began);
}

/// Has joiners get the state as it is now, while training goes on.
void step_loop::stage(step_id step, const actors::stage_state& what) {
  const auto& command = what.command;
  if (command.generation != session_.protocol().generation() || !session_.protocol().is_present_loop(command.loop))
    return;
  const auto& here = session_.place();
  const auto group = actors::place_in_staging_group(what.number, command, here.nodes, here.rank, here.host_address);
  // The stager's thread may still call these when this loop is over.
  auto& session = session_;
  runtime::staging_settings how;
  how.rank = group.rank;
  how.sources = group.sources;
  how.joiners = group.joiners;
  how.step = step;
  how.deadline = std::chrono::milliseconds{session_.settings().collective_timeout_ms};
  how.given_up = [&session, ended = exchange_ended{session.begin().run, group.generation, group.number}] {
    session.client().end(ended);
  };
  how.form = [means = session_.members().means_of_stager(), group](std::stop_token cancelled) {
    return runtime::form_staging_group(means, group, std::move(cancelled));
  };
  session_.stager().begin(std::move(how), session_.state(), {session_.checkpoints().metrics()});
}

// -- a joiner ---------------------------------------------------------------------------------------------------------

bool step_loop::join() {
  for (;;)
    switch (session_.members().regroup({})) {
    case runtime::group_membership::outcome::placed:
      return true;
    case runtime::group_membership::outcome::skips_loop:
      return false;
    case runtime::group_membership::outcome::follows:
      follow();
      break;
    }
}

/// Takes the state as it was at a boundary of the members, and repeats their steps until they name one where the joiner
/// becomes one of them, or they are lost.
void step_loop::follow() {
  auto& members = session_.members();
  if (auto taken = members.take_staged_state(); !taken) {
    members.catch_up().close();
    if (!is_loss_of_staging(taken.error()))
      throw exception{std::move(taken.error())};
    return;
  }
  // What the body throws is the user's.
  while (auto frame = members.look_at_frame()) {
    if (const auto* end = std::get_if<runtime::end_frame>(*frame)) {
      value_or_throw(members.locked()->on_end_of_staging(end->boundary, end->commands_agreed, end->evaluations));
      break;
    }
    const auto next = step_id{session_.protocol().step().value + 1};
    const auto began = std::chrono::steady_clock::now();
    if (!driver_.repeat(next, body_))
      break;
    members.catch_up().note_repeat(std::chrono::steady_clock::now() - began);
    members.locked()->on_repeated(next);
  }
  members.catch_up().close();
}

} // namespace troupe
