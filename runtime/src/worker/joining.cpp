#include "worker/session.hpp"

#include <troupe/collectives/gloo_communicator.hpp>

#include <algorithm>
#include <utility>

/// How a joiner gets the state, and what becomes of it meanwhile: the part of `train_context::impl` for staging
/// groups.
namespace troupe {

namespace {

using namespace std::chrono_literals;

/// How long a staging group may take to form. Who is gone meanwhile is not told to the others.
constexpr auto forming_limit = 30s;

/// How long one waits for another in it: a joiner for a step of training, the others for a joiner's. Whoever is
/// gone is found otherwise.
constexpr auto staging_deadline = std::chrono::hours{24};

/// A joiner that comes after in so long is caught up: the others wait for it no longer than that.
constexpr auto caught_up_within = 50ms;

using exchange = std::function<expected<exchange_result>(const exchange_request&)>;

expected<std::unique_ptr<collectives::communicator>>
form_staging_group(const run_id& run, const staging_place& place, std::stop_token cancelled, const exchange& ask) {
  collectives::gloo_options options;
  options.rank = place.rank;
  options.world_size = place.sources + place.joiners;
  options.generation = place.generation;
  options.host = place.data_address;
  options.deadline = forming_limit;
  options.cancelled = std::move(cancelled);
  auto formed = collectives::make_gloo_communicator(
      std::move(options), [&](std::string mine) -> expected<std::vector<std::string>> {
        auto all =
            ask({run, place.generation, place.number, place.rank, std::move(mine), place.sources + place.joiners});
        if (!all)
          return fail(std::move(all.error()));
        return std::move(all->blobs);
      });
  if (formed)
    (*formed)->set_deadline(staging_deadline);
  return formed;
}

/// Whether the joiner may ask again. Else it is no accident.
bool is_loss_of_staging(const error& reason) {
  return reason.code != errc::mismatch && reason.code != errc::invalid_argument && reason.code != errc::user_error &&
         reason.code != errc::internal;
}

} // namespace

// -- one that has the state -------------------------------------------------------------------------------------------

void train_context::impl::stage_state(step_id step, const control_command& command) {
  // One that was asked for in a loop that is behind.
  if (command.loop + 1 != loops_)
    return;
  auto place = staging_place{command.sequence,  command.generation,
                             begin_.place.rank, begin_.place.world_size,
                             command.joiners,   command.across_nodes ? begin_.place.host_address : "127.0.0.1"};
  runtime::staging_settings settings;
  settings.rank = place.rank;
  settings.sources = place.sources;
  settings.joiners = place.joiners;
  settings.step = step;
  settings.deadline = std::chrono::milliseconds{begin_.collective_timeout_ms};
  settings.given_up = [this, ended = exchange_ended{begin_.run, place.generation, place.number}] { link_.end(ended); };
  settings.form = [this, run = begin_.run, place](std::stop_token cancelled) {
    return form_staging_group(run, place, std::move(cancelled),
                              [this](const exchange_request& message) { return link_.exchange_staging(message); });
  };
  stager_.begin(std::move(settings), state_, {last_metrics_});
}

// -- a joiner -------------------------------------------------------------------------------------------------------

/// Comes back with the state, as one of the others.
bool train_context::impl::join(step_driver& driver, const std::function<void(step&)>& body) {
  skips_loop_ = false;
  for (;;) {
    regroup({});
    if (has_state_ || skips_loop_)
      break;
    follow(driver, body);
    between_steps_ = caught_up_;
  }
  between_steps_ = caught_up_ = has_lost_others_ = false;
  return has_state_;
}

/// Takes the state as it was at a boundary of the others, and repeats their steps until they name one where it is to be
/// one of them. `caught_up_` says whether it has come so far.
void train_context::impl::follow(step_driver& driver, const std::function<void(step&)>& body) {
  caught_up_ = told_caught_up_ = has_lost_others_ = false;
  repeat_took_.reset();
  if (auto taken = take_staged_state(); !taken) {
    close_staging();
    if (!is_loss_of_staging(taken.error()))
      throw exception{std::move(taken.error())};
    return;
  }
  // What goes wrong with the group from here on is told by `has_lost_others_`; what the body throws is the user's.
  while (!caught_up_) {
    auto frame = look_at_frame();
    if (!frame)
      break;
    if (auto* end = std::get_if<runtime::end_frame>(*frame)) {
      if (end->boundary != step_)
        throw exception{errc::internal, "the others end at step " + std::to_string(end->boundary.value) +
                                            ", and this joiner has come to step " + std::to_string(step_.value) +
                                            ": an invariant of Troupe is broken"};
      commands_agreed_ = end->commands_agreed;
      evaluations_ = end->evaluations;
      caught_up_ = true;
      break;
    }
    const auto next = step_id{step_.value + 1};
    const auto began = std::chrono::steady_clock::now();
    if (!driver.repeat(next, body))
      break;
    repeat_took_ = std::chrono::steady_clock::now() - began;
    step_ = committed_ = reduced_ = next;
  }
  close_staging();
}

expected<void> train_context::impl::take_staged_state() {
  auto scope = runtime::activity::scope{activity_, activity_kind::control};
  try {
    open_staging();
  } catch (const exception& x) {
    return fail(x.reason());
  }
  auto facts = runtime::transferred_facts{};
  auto step = followed_->receive(state_, facts);
  if (!step)
    return fail(std::move(step.error()));
  step_ = committed_ = reduced_ = *step;
  last_metrics_ = std::move(facts.last_metrics);
  return {};
}

void train_context::impl::open_staging() {
  auto place = staging_place{};
  auto cancelled = std::stop_token{};
  {
    auto lock = std::lock_guard{communicator_mutex_};
    place = staging_;
    cancel_forming_ = {};
    cancelled = cancel_forming_.get_token();
  }
  auto group =
      value_or_throw(form_staging_group(begin_.run, place, std::move(cancelled),
                                        [this](const exchange_request& message) { return link_.exchange(message); }));
  auto followed = std::make_unique<runtime::staged_state>(std::move(group), place.sources);
  auto lock = std::lock_guard{communicator_mutex_};
  followed_ = std::move(followed);
  if (cancel_forming_.stop_requested())
    followed_->abort({errc::aborted, "the others have lost a member"});
}

void train_context::impl::close_staging() {
  frame_.reset();
  auto over = std::unique_ptr<runtime::staged_state>{};
  {
    auto lock = std::lock_guard{communicator_mutex_};
    over = std::move(followed_);
  }
  // Closing its connections takes a while, and the others may be waiting.
  closing_ = std::async(std::launch::async, [over = std::move(over)]() mutable { over.reset(); });
}

expected<runtime::staged_frame*> train_context::impl::look_at_frame() {
  if (frame_)
    return &*frame_;
  auto scope = runtime::activity::scope{activity_, activity_kind::control};
  auto next = followed_->next();
  has_lost_others_ = !next.has_value();
  if (!next)
    return fail(std::move(next.error()));
  frame_ = std::move(*next);
  if (const auto* gradient = std::get_if<runtime::gradient_frame>(&*frame_); gradient != nullptr && !told_caught_up_) {
    auto behind = gradient->latest.value - std::min(gradient->latest, gradient->step).value;
    told_caught_up_ = behind <= 1 || (repeat_took_ && behind * *repeat_took_ <= caught_up_within);
    if (told_caught_up_)
      link_.tell(caught_up{begin_.run, begin_.worker, staging_.generation, staging_.number, gradient->step});
  }
  return &*frame_;
}

expected<std::span<const std::byte>> train_context::impl::gradient_of_others(step_id step) {
  auto frame = look_at_frame();
  if (!frame)
    return fail(std::move(frame.error()));
  const auto* gradient = std::get_if<runtime::gradient_frame>(*frame);
  if (gradient == nullptr || gradient->step != step)
    throw exception{errc::mismatch, "a joiner that repeats step " + std::to_string(step.value) +
                                        " finds that the others did something else: the training function does not do "
                                        "the same on all workers"};
  auto bytes = gradient->bytes;
  frame_.reset();
  return bytes;
}

std::vector<double> train_context::impl::followed_evaluation() {
  auto frame = look_at_frame();
  // The step cannot be repeated to its end.
  if (!frame)
    throw step_interrupted{};
  auto* evaluation = std::get_if<runtime::evaluation_frame>(*frame);
  if (evaluation == nullptr)
    throw exception{errc::mismatch, "a joiner evaluates what the others did not: the training function does not do the "
                                    "same on all workers"};
  last_evaluation_ = std::move(evaluation->values);
  frame_.reset();
  return last_evaluation_;
}

} // namespace troupe
