#include "worker/session.hpp"
#include "worker/state_transfer.hpp"

#include <algorithm>

/// What a worker does when its group is gone: the part of `train_context::impl` that survives.
namespace troupe {

collectives::communicator& train_context::impl::group() {
  if (!has_state_)
    throw exception{
        errc::invalid_argument,
        "this worker joins a run that is under way, and has no group before for_each_step: training functions "
        "that call collectives before it cannot take in workers later (set failure.replace_lost to false)"};
  if (communicator_ == nullptr)
    throw exception{errc::aborted, "the group of workers is gone"};
  return *communicator_;
}

bool train_context::impl::is_loss_of_group(const error& reason) {
  if (reason.code == errc::aborted || reason.code == errc::stale_generation)
    return true;
  // Nobody's loss explains these.
  if (reason.code == errc::mismatch || reason.code == errc::invalid_argument || reason.code == errc::user_error)
    return false;
  // What else fails when connections are cut in the middle is a consequence of that.
  auto lock = std::lock_guard{communicator_mutex_};
  return aborted_ >= generation_;
}

/// A peer that dies while it connects may be found before anybody tells: but one that cannot be reached at all is not
/// tried for ever.
bool train_context::impl::may_form_again(const error& reason) {
  if (is_loss_of_group(reason))
    return true;
  return reason.code == errc::unreachable && ++failed_formings_ < most_failed_formings;
}

/// What the driver has said before it stopped to answer tells more.
error train_context::impl::why_it_ends(error otherwise) {
  auto lock = std::lock_guard{communicator_mutex_};
  return abort_reason_ && otherwise.code == errc::aborted ? *abort_reason_ : otherwise;
}

/// Returns once nothing of it writes to this worker's memory any more, which may be soon only if it was aborted.
void train_context::impl::end_gpu_group(std::unique_ptr<collectives::device_group> group) {
  if (!group)
    return;
  const auto rests = rest();
  static_cast<void>(group->finish());
  // The next may be made of what is left of it. One that goes by the communicator ends with that.
  if (group->name().starts_with("nccl"))
    gpu_predecessor_ = std::move(group);
}

void train_context::impl::regroup(error reason) {
  auto scope = runtime::activity::scope{activity_, activity_kind::control};
  // What is said to joiners at a boundary that all have come to stays true.
  if (!between_steps_)
    stager_.abort(reason);
  if (has_state_ && !pause_began_)
    pause_began_ = last_pass_;
  // Not all parts of what is under way will come.
  snapshots_->abandon();
  for (;;) {
    word_.freeze();
    auto old = std::unique_ptr<collectives::communicator>{};
    auto old_on_gpu = std::unique_ptr<collectives::device_group>{};
    {
      auto lock = std::lock_guard{communicator_mutex_};
      old = std::move(communicator_);
      old_on_gpu = std::move(gpu_group_);
    }
    // The driver's abort does not find it any more, and this worker may be the first to know.
    if (old_on_gpu && reason.code != errc::none)
      old_on_gpu->abort(reason);
    // Their threads and streams end here: only then may this worker report.
    end_gpu_group(std::move(old_on_gpu));
    old.reset();
    regroup_report report;
    report.run = begin_.run;
    report.generation = caught_up_ && !has_state_ ? staging_.generation : begin_.place.generation;
    report.worker = begin_.worker;
    report.has_state = has_state_ || caught_up_;
    report.between_steps = between_steps_;
    report.in_step = has_state_ && word_.load().phase == runtime::step_phase::frozen;
    report.committed = committed_;
    report.holds_next = reduced_.value == committed_.value + 1;
    report.commands_agreed = commands_agreed_;
    report.evaluations = evaluations_;
    report.staging = staging_.number;
    report.reason = std::move(reason);
    auto next = link_.regroup(report);
    if (!next)
      throw exception{why_it_ends(std::move(next.error()))};
    if (next->released)
      throw worker_released{};
    if (next->skips_loop) {
      skips_loop_ = true;
      begin_.earlier_evaluations.push_back(std::move(next->next_evaluations));
      return;
    }
    if (next->staging.number > 0) {
      auto lock = std::lock_guard{communicator_mutex_};
      staging_ = next->staging;
      return;
    }
    if (adopt(*next)) {
      try {
        form_communicator();
        settle_evaluations(*next);
        exchange_state(*next);
        prepare_checkpoints();
        return;
      } catch (const exception& x) {
        if (!may_form_again(x.reason()))
          throw;
        reason = x.reason();
        continue;
      }
    }
    reason = {};
  }
}

bool train_context::impl::adopt(const next_generation& next) {
  committed_ = std::max(committed_, next.commit_point);
  reduced_ = committed_;
  commands_agreed_ = next.commands_agreed;
  if (!has_state_) {
    // Where the others stand, whose state comes. What came before is no pause of this worker's.
    step_ = committed_;
    last_pass_ = std::chrono::steady_clock::now();
    commands_done_ = commands_agreed_;
    has_state_ = caught_up_ && std::ranges::find(next.joiners, next.place.rank) == next.joiners.end();
    if (!has_state_)
      evaluations_ = next.evaluations;
  }
  // One that has got its state from others is compared with one of them as a whole. The driver says who does that: who
  // has left the barrier before knows it to be behind, who has not does not.
  comparison_ = next.comparison;
  asked_open_ = false;
  retrying_ = false;
  pusher_->set_rank(next.place.rank);
  auto lock = std::lock_guard{communicator_mutex_};
  staging_ = {};
  caught_up_ = false;
  begin_.place = next.place;
  gpu_exchanges_ = 0;
  generation_ = next.place.generation;
  cancel_forming_ = {};
  word_.restart(generation_, committed_);
  if (aborted_ < generation_)
    return true;
  word_.freeze();
  return false;
}

/// Joiners get the state of the others.
void train_context::impl::exchange_state(const next_generation& next) {
  if (next.joiners.empty())
    return;
  auto facts = runtime::transferred_facts{last_metrics_};
  value_or_throw(runtime::transfer_state(*communicator_, next.joiners, state_, facts));
  last_metrics_ = std::move(facts.last_metrics);
  has_state_ = true;
}

/// Who was ahead gives the result of the last evaluation to who was not.
void train_context::impl::settle_evaluations(const next_generation& next) {
  if (!next.evaluations_differ)
    return;
  auto size = std::uint64_t{last_evaluation_.size()};
  value_or_throw(communicator_->broadcast(std::span{&size, 1}, next.evaluation_source));
  auto values = evaluations_ == next.evaluations ? last_evaluation_ : std::vector<double>(size);
  value_or_throw(communicator_->broadcast(std::span{values}, next.evaluation_source));
  last_evaluation_ = std::move(values);
  evaluations_ = next.evaluations;
}

} // namespace troupe
