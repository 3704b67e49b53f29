#include "worker/group/group_membership.hpp"

#include "worker/state/state_transfer.hpp"

#include <cstdio>
#include <fmt/format.h>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::runtime {

namespace {

/// Long enough to be none, and short enough to be added to a point in time.
constexpr auto no_deadline = std::chrono::milliseconds{std::chrono::hours{24 * 365}};

/// No deadline if the driver detects hangs.
std::chrono::milliseconds group_deadline(const run_settings& settings) {
  return settings.driver_ends_waits ? no_deadline : std::chrono::milliseconds{settings.collective_timeout_ms};
}

} // namespace

group_membership::group_membership(const begin_training& begin, driver_client& driver, tracked_state& state,
                                   checkpointer& checkpoints, metrics_pusher& pusher, activity& doing,
                                   device_factories factories)
    : begin_(begin),
      driver_(driver),
      state_(state),
      checkpoints_(checkpoints),
      pusher_(pusher),
      activity_(doing),
      protocol_(begin),
      group_({begin.run, begin.worker, data_plane_of(begin, driver.group_secret()), begin.device,
              group_deadline(begin.settings), std::move(factories),
              [this] {
                if (!protocol_.lock()->has_state())
                  return expected<void>{fail(errc::not_found, "this worker has no state")};
                return checkpoints_.save_last_copy(gate_, protocol().place());
              }},
             driver, gate_),
      prepares_checkpoints_(begin.checkpoints.every_steps > 0) {
  group_.begin_generation(begin.place);
}

void group_membership::form_first() {
  try {
    if (auto reason = protocol_.lock()->abort_reason())
      throw exception{std::move(*reason)};
    group_.form();
  } catch (const exception& x) {
    if (!may_form_again(x.reason()))
      throw;
    regroup(x.reason());
  }
}

collectives::communicator& group_membership::communicator() {
  if (!protocol_.lock()->has_state())
    throw exception{
        errc::invalid_argument,
        "this worker joins a run that is under way, and has no group before for_each_step: training functions that "
        "call collectives before it cannot take in workers later (set failure.replace_lost to false)"};
  return group_.communicator();
}

// -- a lost group -----------------------------------------------------------------------------------------------------

group_membership::outcome group_membership::regroup(error reason, position where) {
  auto scope = activity::scope{activity_, activity_kind::control};
  if (exit_reason_)
    throw exception{errc::timed_out,
                    fmt::format("the state of step {} could not be saved before the end of the run, because the "
                                "training function waits for its group: {}",
                                protocol().committed(), exit_reason_->message)};
  // At a boundary that all members have reached, the data sent to joiners stays valid.
  if (where == position::elsewhere && !protocol_.lock()->has_caught_up())
    stager_.abort(reason);
  if (protocol_.lock()->has_state() && !pause_began_)
    pause_began_ = last_commit_;
  checkpoints_.abandon();
  for (;;) {
    if (where == position::between_steps)
      protocol_.lock()->begin_regroup_between_steps();
    else
      protocol_.lock()->begin_regroup();
    // This worker may report only after the threads and streams of the old group have ended.
    group_.close(reason, protocol().step());
    const auto is_joiner = !protocol_.lock()->has_state();
    auto next = report(std::move(reason), group_.take_unreachable());
    auto action = protocol_.lock()->on_next(std::move(next));
    if (std::holds_alternative<actors::leave_run>(action.what))
      throw worker_released{};
    if (auto* last = std::get_if<actors::save_last_copy>(&action.what)) {
      if (protocol().step() == protocol().committed())
        save_and_leave(std::move(last->reason));
      // The group was lost before this worker applied the committed step: save after it is applied.
      exit_reason_ = std::move(last->reason);
      return outcome::placed;
    }
    if (std::holds_alternative<actors::skip_loop_body>(action.what))
      return outcome::skips_loop;
    if (std::holds_alternative<actors::follow_members>(action.what)) {
      catch_up_.begin();
      // From here on, an abort reaches it; check for an earlier one.
      if (auto over = protocol_.lock()->staging_abort_reason())
        catch_up_.abort(*over);
      return outcome::follows;
    }
    // A joiner's pause does not include the time before it joined.
    if (is_joiner)
      last_commit_ = std::chrono::steady_clock::now();
    reason = {};
    const auto* place = std::get_if<actors::form_group>(&action.what);
    if (place == nullptr)
      pusher_.set_rank(protocol().rank());
    else if (form(place->place, reason))
      return outcome::placed;
  }
}

bool group_membership::has_to_save(error reason) {
  auto scope = activity::scope{activity_, activity_kind::control};
  // The process may end once the driver knows.
  pusher_.flush();
  const auto message = protocol_.lock()->report_throw(std::move(reason));
  auto next = driver_.regroup(message);
  if (!next)
    return false;
  auto action = protocol_.lock()->on_next(std::move(*next));
  auto* last = std::get_if<actors::save_last_copy>(&action.what);
  if (last != nullptr)
    exit_reason_ = std::move(last->reason);
  return last != nullptr;
}

void group_membership::save_before_end() {
  auto scope = activity::scope{activity_, activity_kind::control};
  stager_.abort(*exit_reason_);
  checkpoints_.abandon();
  group_.close(*exit_reason_, protocol().step());
  if (auto saved = save_last_copy(); !saved)
    std::fprintf(stderr, "warning: %s\n", saved.error().message.c_str());
  else if (exit_reason_->code == errc::aborted)
    throw exception{*exit_reason_};
}

void group_membership::leave_if_asked() {
  if (exit_reason_)
    save_and_leave(*exit_reason_);
}

void group_membership::save_and_leave(error reason) {
  value_or_throw(save_last_copy());
  throw exception{std::move(reason)};
}

expected<void> group_membership::save_last_copy() {
  const auto still = quiet();
  auto saved = checkpoints_.save_last_copy(gate_, protocol().place());
  // `not_found` means that nothing is tracked.
  if (!saved && saved.error().code != errc::not_found)
    return fail(saved.error().code, fmt::format("the state of step {} could not be saved before the end of the run: {}",
                                                protocol().committed(), saved.error().message));
  return {};
}

next_generation group_membership::report(error reason, std::vector<rank_id> unreachable) {
  // Two statements, so that the lock is not held while the driver decides.
  const auto message = protocol_.lock()->report(std::move(reason), std::move(unreachable));
  auto next = driver_.regroup(message);
  // An earlier abort explains more than a lost driver.
  if (!next)
    throw exception{protocol_.lock()->why_it_ends(next.error())};
  return std::move(*next);
}

bool group_membership::form(const member_place& place, error& lost) {
  pusher_.set_rank(place.place.rank);
  group_.begin_generation(place.place);
  try {
    // From here on, an abort reaches the group; check for an earlier one.
    if (auto reason = protocol_.lock()->abort_reason())
      throw exception{std::move(*reason)};
    group_.form();
    checkpoints_.follow_driver(place.place);
    share_last_evaluation(place);
    exchange_state(place);
    prepare_checkpoints();
    protocol_.lock()->on_formed();
    return true;
  } catch (const exception& x) {
    if (!may_form_again(x.reason()))
      throw;
    lost = x.reason();
    return false;
  }
}

void group_membership::exchange_state(const member_place& next) {
  if (next.joiners.empty())
    return;
  auto extras = transferred_extras{checkpoints_.metrics()};
  value_or_throw(transfer_state(group_.communicator(), next.joiners, state_, extras));
  checkpoints_.set_metrics(std::move(extras.last_metrics));
  protocol_.lock()->on_state_received();
}

/// A member that was ahead sends the result of the last evaluation to those that were behind.
void group_membership::share_last_evaluation(const member_place& next) {
  if (!next.evaluation_source)
    return;
  const auto& mine = protocol().last_evaluation();
  auto size = std::uint64_t{mine.size()};
  auto& group = group_.communicator();
  value_or_throw(group.broadcast(std::span{&size, 1}, *next.evaluation_source));
  auto values = protocol().evaluations() == next.evaluations ? mine : std::vector<double>(size);
  value_or_throw(group.broadcast(std::span{values}, *next.evaluation_source));
  protocol_.lock()->on_evaluated(next.evaluations, std::move(values));
}

void group_membership::prepare_checkpoints() {
  if (prepares_checkpoints_)
    checkpoints_.prepare(protocol().place());
}

void group_membership::note_commit(step_id step) {
  const auto now = std::chrono::steady_clock::now();
  if (auto from = std::exchange(pause_began_, std::nullopt)) {
    const auto pause = std::chrono::duration_cast<std::chrono::microseconds>(now - *from).count();
    pusher_.record(pause_row{protocol().generation(), step, static_cast<std::uint64_t>(pause)});
  }
  last_commit_ = now;
}

// -- the members' steps, on a joiner ---------------------------------------------------------------------------------

staging_means group_membership::means(expected<exchange_result> (driver_client::*exchange)(const exchange_request&)) {
  return {data_plane_of(begin_, driver_.group_secret()), driver_, exchange, group_.shared_memory()};
}

expected<void> group_membership::take_staged_state() {
  auto scope = activity::scope{activity_, activity_kind::control};
  auto extras = transferred_extras{};
  const auto place = *protocol_.lock()->staging();
  TROUPE_TRY(auto step, catch_up_.receive(means(&driver_client::exchange), place, state_, extras));
  protocol_.lock()->on_staged_state(step);
  checkpoints_.set_metrics(std::move(extras.last_metrics));
  return {};
}

expected<staged_frame*> group_membership::look_at_frame() {
  auto scope = activity::scope{activity_, activity_kind::control};
  auto frame = catch_up_.frame();
  if (!frame)
    return frame;
  if (const auto* gradient = std::get_if<gradient_frame>(*frame))
    if (auto told = protocol_.lock()->judge_progress(gradient->step, gradient->latest, catch_up_.repeat_took()))
      driver_.tell(*told);
  return frame;
}

expected<std::span<const std::byte>> group_membership::gradient_of_members(step_id step) {
  TROUPE_TRY(auto frame, look_at_frame());
  const auto* gradient = std::get_if<gradient_frame>(frame);
  if (gradient == nullptr || gradient->step != step)
    throw exception{errc::mismatch,
                    fmt::format("this joining worker repeats step {} and finds that the others did something else: the "
                                "training function does not do the same on all workers",
                                step)};
  auto bytes = gradient->bytes;
  catch_up_.drop_frame();
  return bytes;
}

// -- from any thread --------------------------------------------------------------------------------------------------

void group_membership::abort(const abort_training& message) {
  switch (protocol_.lock()->on_abort(message)) {
  case actors::abort_effect::none:
    return;
  case actors::abort_effect::ends_staging:
    return catch_up_.abort(message.reason);
  case actors::abort_effect::ends_group:
    checkpoints_.abandon();
    return group_.abort(message.generation, message.reason);
  }
}

void group_membership::beat(worker_beat& into) noexcept {
  {
    const auto protocol = protocol_.lock();
    into.generation = protocol->generation();
    into.committed = protocol->committed();
  }
  into.progress = activity_.progress();
  into.activity = activity_.kind();
  // Waiting for this rank's own kernels counts as user code.
  if (into.activity == activity_kind::collective && group_.waits_for_own_gpu())
    into.activity = activity_kind::user_code;
}

} // namespace troupe::runtime
