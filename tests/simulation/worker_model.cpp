#include "worker_model.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

namespace troupe::simulation {

std::string_view to_string(standing x) noexcept {
  switch (x) {
  case standing::starting:
    return "starts";
  case standing::waiting_to_begin:
    return "is ready";
  case standing::exchanging:
    return "asks for addresses";
  case standing::connecting:
    return "connects";
  case standing::agreeing:
    return "tells its plan";
  case standing::evaluating:
    return "evaluates";
  case standing::between_steps:
    return "is between steps";
  case standing::reducing:
    return "reduces";
  case standing::has_gradient:
    return "has the gradient";
  case standing::in_barrier:
    return "is in the barrier";
  case standing::behind_barrier:
    return "is behind the barrier";
  case standing::waiting_for_commands:
    return "waits for commands";
  case standing::saving:
    return "saves";
  case standing::reporting:
    return "reports";
  case standing::sharing_evaluation:
    return "takes the result of an evaluation";
  case standing::transferring:
    return "transfers state";
  case standing::following:
    return "follows the others";
  case standing::finished:
    return "has finished";
  }
  return "?";
}

// -- the actor --------------------------------------------------------------------------------------------------------

const group_place& worker_model::place() const noexcept {
  static const group_place none;
  return protocol_ ? protocol_->place() : none;
}

void worker_model::begin(const begin_work& message) {
  if (protocol_)
    return;
  begin_training begin;
  begin.run = world_.run();
  begin.worker = id_;
  begin.place = message.place;
  begin.settings.shards = shards;
  begin.resume.step = restored_ = message.restored.step;
  begin.earlier_evaluations = message.earlier_evaluations;
  protocol_.emplace(begin);
  if (early_abort_)
    abort(*early_abort_);
  if (!has_state())
    return go_to_next_loop();
  state_ = message.restored;
  // An abort may have come first, and is found when the group is formed.
  form_communicator();
}

void worker_model::abort(const abort_training& message) {
  if (!protocol_) {
    early_abort_ = message;
    return;
  }
  // The mutant takes down what it has reached, and goes on.
  if (world_.defect() == mutation::passes_after_its_report && message.generation == generation() && has_state()) {
    if (!snapshot_)
      snapshot_ = worker_position::in_step{*protocol_->report({}).progress(),
                                           protocol_->reduced().value == protocol_->committed().value + 1};
    cut_off_ = true;
    return;
  }
  if (protocol_->on_abort(message) != actors::abort_effect::none)
    cut_off_ = true;
}

void worker_model::command(const control_command& message) {
  if (protocol_)
    commands_.add(message);
}

void worker_model::release() {
  // A thread of the user's may keep the process from ending: its node kills it in the end.
  if (world_.random().one_in(32))
    return;
  die();
  world_.process_ends(*this);
}

void worker_model::die() {
  lives_ = false;
  stop_giving();
  if (followed_)
    followed_->is_broken = true;
  if (group_)
    group_->close(rank(), world_.peers_are_noticed() ? &world_.random() : nullptr);
}

// -- the training thread ----------------------------------------------------------------------------------------------

bool worker_model::can_run() const {
  if (!lives_ || frozen_)
    return false;
  switch (stands_) {
  case standing::starting:
  case standing::between_steps:
  case standing::has_gradient:
  case standing::behind_barrier:
    return true;
  case standing::connecting:
  case standing::evaluating:
  case standing::reducing:
  case standing::in_barrier:
  case standing::sharing_evaluation:
  case standing::transferring: {
    if (cut_off_)
      return true;
    auto seen = group_->look(rank());
    return seen == data_plane::view::complete || (seen == data_plane::view::peer_missing && world_.peers_are_noticed());
  }
  case standing::waiting_for_commands:
    return commands_.highest() >= protocol_->commands_agreed();
  case standing::following:
    return cut_off_ || followed_->is_broken ||
           (followed_->has_snapshot() && (!has_snapshot_ || position_ < followed_->frames.size()));
  case standing::waiting_to_begin:
  case standing::exchanging:
  case standing::agreeing:
  case standing::saving:
  case standing::reporting:
  case standing::finished:
    return false;
  }
  return false;
}

void worker_model::run() {
  switch (stands_) {
  case standing::starting:
    return join_process();
  case standing::connecting:
    return leave_connect();
  case standing::evaluating:
    return leave_evaluation();
  case standing::between_steps:
    return begin_step();
  case standing::reducing:
    return leave_reduction();
  case standing::has_gradient:
    return enter_barrier();
  case standing::in_barrier:
    return leave_barrier();
  case standing::behind_barrier:
    return commit();
  case standing::waiting_for_commands:
    return end_step();
  case standing::sharing_evaluation:
    return leave_sharing_evaluation();
  case standing::transferring:
    return leave_transfer();
  case standing::following:
    return follow();
  case standing::waiting_to_begin:
  case standing::exchanging:
  case standing::agreeing:
  case standing::saving:
  case standing::reporting:
  case standing::finished:
    return;
  }
}

void worker_model::stand(standing where) {
  stands_ = where;
  ++progress_;
  world_.stands(*this, where);
}

bool worker_model::is_awaited(std::uint64_t number) {
  if (number != awaited_)
    return false;
  awaited_ = 0;
  return true;
}

void worker_model::join_process() {
  const auto reports_own_build = flaw_ == flaw::other_build && world_.defect() != mutation::reports_the_drivers_build;
  world_.send_to_driver(*this,
                        worker_ready{world_.run(), id_, id_.value + 1, "host", reports_own_build ? "another" : "build",
                                     flaw_ == flaw::other_numerics ? "other" : "same"});
  stand(standing::waiting_to_begin);
}

void worker_model::lose(interrupted where, const error& reason) {
  protocol_->is_loss_of_group(reason) ? regroup(where, reason) : finish(reason, false);
}

} // namespace troupe::simulation
