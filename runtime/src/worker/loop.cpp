#include "worker/session.hpp"
#include "worker/step_driver.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <fmt/format.h>
#include <span>
#include <utility>

/// Loops of steps: `for_each_step`, what happens at the boundary between two steps, and how a joiner gets there.
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

void train_context::impl::for_each_step(runtime::loop_plan plan, const step_body& body) {
  if (plan.steps == 0)
    plan.steps = given_.begin.settings.steps;
  if (!members_.locked()->enter_loop()) {
    ended_.stopped = protocol().is_stopped();
    return;
  }
  agree_on(plan);
  members_.locked()->begin_steps();
  auto driver = step_driver{*this, plan};
  if (!has_state() && !join(driver, body))
    return members_.locked()->end_steps();
  const auto stop_after = settings().stop_after == 0 ? plan.steps : settings().stop_after;
  const auto last = std::min(plan.steps, stop_after);
  // Unless a step says otherwise.
  ended_.stopped = last < plan.steps;
  for (auto id = step_id{protocol().step().value + 1}; id.value <= last && !protocol().is_finished(); ++id.value) {
    driver.run(id, body);
    members_.locked()->on_applied(id);
    pusher_.applied(id);
    show_title();
    const auto end = driver.finishes_run()    ? actors::step_end::finishes_run
                     : id.value == plan.steps ? actors::step_end::last_step
                     : id.value == stop_after ? actors::step_end::stops
                                              : actors::step_end::goes_on;
    if (!end_step(id, end))
      break;
  }
  members_.locked()->end_steps();
  stager().abort({errc::aborted, "the others have done their last step"});
  if (settings().verify_determinism > 0 && place().rank == rank_id{0})
    std::fprintf(stderr, "determinism: %s\n",
                 fmt::format("{} shards were computed twice, {} of them by another worker, with equal bits{}{}",
                             driver.checker().checked(), driver.checker().checked_elsewhere(),
                             frameworks().empty() ? "" : "; ", frameworks())
                     .c_str());
  // What is tracked belongs to the training function, and is gone when that has returned.
  ended_.state_sha256 = state_.sha256();
}

// -- the boundary between two steps -----------------------------------------------------------------------------------

std::vector<control_command> train_context::impl::take_due_commands() {
  const auto due = protocol().due_commands();
  if (!due)
    return {};
  auto commands = commands_.take(due->after, due->up_to, command_limit);
  if (commands.empty())
    throw exception{errc::timed_out,
                    fmt::format("command {}, which another rank has, has not come from the driver within {} s",
                                due->up_to, command_limit.count())};
  return commands;
}

/// A rank that has decided otherwise is in its next step, and makes another call. Members that are lost meanwhile take
/// no part in the decision: in the next generation those that are left ask each other again, also where they had
/// agreed, because others may not have.
void train_context::impl::agree_to_finish(step_id step) {
  for (;;) {
    const auto mine = std::array{step.value};
    auto all = [&] {
      const auto scope = in_collective();
      return members_.communicator().all_gather_bytes(std::as_bytes(std::span{mine}));
    }();
    if (all)
      return;
    if (!is_loss_of_group(all.error()))
      throw exception{
          all.error().code,
          fmt::format("step.finish() was called on rank {} in step {}, and not on all ranks: the decision has "
                      "to be the same on all ({})",
                      place().rank, step, all.error().message)};
    regroup(std::move(all.error()));
  }
}

bool train_context::impl::end_step(step_id step, actors::step_end end) {
  members_.leave_if_asked();
  if (end == actors::step_end::finishes_run)
    agree_to_finish(step);
  const auto commands = take_due_commands();
  const auto actions = members_.locked()->on_boundary(commands, end);
  ended_.stopped = false;
  // The group may be lost on the way: what was agreed on in the generation before is void then.
  for (const auto& action : actions) {
    if (const auto* save = std::get_if<actors::consider_checkpoint>(&action.what))
      save_at_boundary(step, *save);
    if (const auto* joiners = std::get_if<actors::stage_state>(&action.what))
      stage(step, *joiners);
    if (const auto* here = std::get_if<actors::regroup_here>(&action.what);
        here != nullptr && here->generation == protocol().generation()) {
      stager().push_end(step, protocol().commands_agreed(), protocol().evaluations());
      members_.regroup_between_steps();
    }
    if (std::holds_alternative<actors::stop_here>(action.what))
      ended_.stopped = true;
  }
  return !ended_.stopped;
}

void train_context::impl::save_at_boundary(step_id step, const actors::consider_checkpoint& what) {
  checkpoints_.at_boundary(
      step, what, [this] { return place(); },
      [this, step, &what](error reason) {
        if (is_custom() || !is_loss_of_group(reason))
          throw exception{std::move(reason)};
        regroup(std::move(reason));
        if (what.finishes_run)
          agree_to_finish(step);
      });
}

/// Has joiners get the state as it is now, while training goes on.
void train_context::impl::stage(step_id step, const actors::stage_state& what) {
  const auto& command = what.command;
  if (command.generation != protocol().generation() || !protocol().is_present_loop(command.loop))
    return;
  const auto group =
      staging_place{what.number,        command.generation, place().rank,
                    place().world_size, command.joiners,    command.across_nodes ? place().host_address : "127.0.0.1"};
  runtime::staging_settings how;
  how.rank = group.rank;
  how.sources = group.sources;
  how.joiners = group.joiners;
  how.step = step;
  how.deadline = std::chrono::milliseconds{settings().collective_timeout_ms};
  how.given_up = [this, ended = exchange_ended{given_.begin.run, group.generation, group.number}] {
    driver_.end(ended);
  };
  how.form = [this, group](std::stop_token cancelled) {
    const auto network = runtime::data_plane_of(given_.begin, driver_.group_secret());
    return runtime::form_staging_group(network, group, std::move(cancelled), [this](const exchange_request& message) {
      return driver_.exchange_staging(message);
    });
  };
  stager().begin(std::move(how), state_, {checkpoints_.metrics()});
}

// -- a joiner ---------------------------------------------------------------------------------------------------------

bool train_context::impl::join(step_driver& driver, const step_body& body) {
  for (;;)
    switch (members_.regroup({})) {
    case runtime::membership::outcome::placed:
      return true;
    case runtime::membership::outcome::skips_loop:
      return false;
    case runtime::membership::outcome::follows:
      follow(driver, body);
      break;
    }
}

/// Takes the state as it was at a boundary of the members, and repeats their steps until they name one where the joiner
/// becomes one of them, or they are lost.
void train_context::impl::follow(step_driver& driver, const step_body& body) {
  if (auto taken = take_staged_state(); !taken) {
    members_.catch_up().close();
    if (!is_loss_of_staging(taken.error()))
      throw exception{std::move(taken.error())};
    return;
  }
  // What the body throws is the user's.
  while (auto frame = look_at_frame()) {
    if (const auto* end = std::get_if<runtime::end_frame>(*frame)) {
      value_or_throw(members_.locked()->on_end_of_staging(end->boundary, end->commands_agreed, end->evaluations));
      break;
    }
    const auto next = step_id{protocol().step().value + 1};
    const auto began = std::chrono::steady_clock::now();
    if (!driver.repeat(next, body))
      break;
    members_.catch_up().note_repeat(std::chrono::steady_clock::now() - began);
    members_.locked()->on_repeated(next);
  }
  members_.catch_up().close();
}

expected<void> train_context::impl::take_staged_state() {
  auto scope = runtime::activity::scope{activity_, activity_kind::control};
  auto extras = runtime::transferred_extras{};
  const auto place = *members_.locked()->staging();
  TROUPE_TRY(auto step, members_.catch_up().receive(place, state_, extras));
  members_.locked()->on_staged_state(step);
  checkpoints_.set_metrics(std::move(extras.last_metrics));
  return {};
}

expected<runtime::staged_frame*> train_context::impl::look_at_frame() {
  auto scope = runtime::activity::scope{activity_, activity_kind::control};
  auto frame = members_.catch_up().frame();
  if (!frame)
    return frame;
  if (const auto* gradient = std::get_if<runtime::gradient_frame>(*frame))
    if (auto told =
            members_.locked()->judge_progress(gradient->step, gradient->latest, members_.catch_up().repeat_took()))
      driver_.tell(*told);
  return frame;
}

expected<std::span<const std::byte>> train_context::impl::gradient_of_members(step_id step) {
  TROUPE_TRY(auto frame, look_at_frame());
  const auto* gradient = std::get_if<runtime::gradient_frame>(frame);
  if (gradient == nullptr || gradient->step != step)
    throw exception{errc::mismatch,
                    fmt::format("this joining worker repeats step {} and finds that the others did something else: the "
                                "training function does not do the same on all workers",
                                step)};
  auto bytes = gradient->bytes;
  members_.catch_up().drop_frame();
  return bytes;
}

} // namespace troupe
