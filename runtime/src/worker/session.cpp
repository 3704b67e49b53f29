#include "worker/session.hpp"

#include "process/debugger.hpp"
#include "worker/step/step_loop.hpp"

#include <troupe/actors/run_directory.hpp>

#include <cstdio>
#include <fmt/format.h>
#include <utility>

namespace troupe {

namespace {

metrics_batch head_of(const begin_training& begin) {
  metrics_batch head;
  head.run = begin.run;
  head.worker = begin.worker;
  head.rank = begin.place.rank;
  return head;
}

} // namespace

train_context::impl::impl(begin_training begin, runtime::driver_client& driver, runtime::device_factories factories)
    : given_(std::move(begin)),
      driver_(driver),
      pusher_(driver_, head_of(given_.begin)),
      checkpoints_(given_.begin, driver_, state_, pusher_, activity_),
      members_(given_.begin, driver_, state_, checkpoints_, pusher_, activity_, std::move(factories)),
      barrier_(members_, checkpoints_, commands_, state_),
      evaluator_(given_.begin.settings, members_, activity_) {}

void train_context::impl::prepare() {
  checkpoints_.choose_sync(given_.begin.place);
  restored_step_ = given_.begin.resume.step;
  // A joiner goes as far as its first loop by itself.
  if (!has_state())
    return;
  restored_step_ = checkpoints_.restore().value_or(step_id{});
  members_.locked()->on_restored(restored_step_);
  members_.form_first();
}

worker_finished train_context::impl::run(const std::function<void(train_context&)>& function) {
  worker_finished result;
  result.run = given_.begin.run;
  result.worker = given_.begin.worker;
  try {
    prepare();
    auto context = train_context{*this};
    function(context);
    // What the training function has asked for is durable when it counts as finished.
    if (is_custom())
      checkpoints_.finish();
    result.state_sha256 = ended_.state_sha256;
    // A custom loop is left by the training function, in whichever step its ranks agree on.
    result.stopped = ended_.stopped || (is_custom() && stop_requested_);
  } catch (const worker_released&) {
    result.reason = {errc::stopped, "this worker is not needed any more"};
  } catch (const exception& x) {
    result.reason = x.reason();
    result.needs_restart = is_loss_of_group(x.reason());
    // What was asked of actors that have ended with the run is a consequence, as a cut-off collective is.
    if (auto aborted = members_.locked()->abort_reason(); aborted && x.code() == errc::unreachable)
      result.reason = std::move(*aborted);
  } catch (const std::exception& x) {
    result.reason = {errc::user_error, x.what()};
    // What a function makes of the loss of its group is a consequence of that.
    result.needs_restart = kind_ == loop_kind::custom_lost;
  } catch (...) {
    result.reason = {errc::user_error, "the training function threw something that is no std::exception"};
  }
  if (result.reason.code != errc::none)
    result.reason = with_place(std::move(result.reason));
  result.generation = place().generation;
  result.step = protocol().step();
  auto scope = runtime::activity::scope{activity_, activity_kind::control};
  pusher_.flush();
  return result;
}

error train_context::impl::with_place(error reason) const {
  const auto step = protocol().step();
  // Before the first step of a process, these say something of the program and its files, whatever the rank.
  if (step == restored_step_ && (reason.code == errc::invalid_argument || reason.code == errc::mismatch))
    return reason;
  reason.message = step == step_id{} ? fmt::format("rank {} before the first step: {}", place().rank, reason.message)
                                     : fmt::format("rank {} after step {}: {}", place().rank, step, reason.message);
  return reason;
}

void train_context::impl::for_each_step(runtime::loop_plan plan, const step_body& body) {
  if (plan.steps == 0)
    plan.steps = settings().steps;
  if (!members_.locked()->enter_loop()) {
    ended_.stopped = protocol().is_stopped();
    return;
  }
  agree_on(plan);
  members_.locked()->begin_steps();
  auto loop = step_loop{*this, plan, body};
  if (!has_state() && !loop.join())
    return members_.locked()->end_steps();
  ended_.stopped = loop.run() == step_loop::end::stopped;
  members_.locked()->end_steps();
  stager().abort({errc::aborted, "the others have done their last step"});
  if (settings().verify_determinism > 0 && place().rank == rank_id{0})
    std::fprintf(stderr, "determinism: %s\n", loop.describe_checks().c_str());
  // What is tracked belongs to the training function, and is gone when that has returned.
  ended_.state_sha256 = state_.sha256();
}

void train_context::impl::note_applied(step_id step) {
  members_.locked()->on_applied(step);
  pusher_.applied(step);
  show_title();
}

void train_context::impl::command(const control_command& message) {
  commands_.add(message);
  if (std::holds_alternative<stop_command>(message.what))
    stop_requested_ = true;
}

std::string train_context::impl::describe() {
  const auto step = members_.locked()->step_under_way();
  return fmt::format("step {}, {}", step, members_.group().describe());
}

std::string train_context::impl::title() {
  const auto protocol = members_.locked();
  return runtime::worker_name(protocol->rank(), protocol->committed(), given_.begin.settings.name);
}

void train_context::impl::heartbeat() noexcept {
  if (activity_.kind() == activity_kind::user_code)
    activity_.touch();
}

void train_context::impl::report_step(step_id step, metric_map values) {
  checkpoints_.set_metrics(values);
  // The members have said it.
  if (members_.locked()->follows())
    return;
  const auto micros_of = [](auto time) {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  };
  const auto since = micros_of(std::chrono::steady_clock::now() - started_);
  const auto wall = micros_of(std::chrono::system_clock::now().time_since_epoch());
  pusher_.report({step, given_.begin.resume.run_time_us + since, wall, std::move(values)});
}

void train_context::impl::agree_on(const step_plan& plan) {
  auto invalid = [](std::string what) { throw exception{errc::invalid_argument, std::move(what)}; };
  if (plan.data.samples == 0)
    invalid("the data set is empty: step_plan.data.samples must be positive");
  if (plan.batch_samples == 0)
    invalid("step_plan.batch_samples is 0: a step needs at least one sample");
  if (const auto* how = std::get_if<shuffle::blocks>(&plan.order);
      how != nullptr && (how->block_samples == 0 || how->window_blocks == 0))
    invalid("step_plan.order: blocks need at least one sample, and windows one block");
  if (plan.steps == 0)
    invalid("nobody says how many steps to do: set run.steps or step_plan.steps");
  if (plan.steps > (std::uint64_t{1} << 42) / plan.batch_samples)
    invalid("step_plan.steps times step_plan.batch_samples is beyond 2^42 samples");
  run_plan message;
  message.steps = plan.steps;
  message.batch_samples = plan.batch_samples;
  message.data_samples = plan.data.samples;
  message.data_fingerprint = fmt::format("{} samples, {}", plan.data.samples, plan.data.fingerprint);
  if (const auto order = troupe::describe(plan.order); !order.empty())
    message.data_fingerprint += ", " + order;
  agree_on(std::move(message));
}

void train_context::impl::agree_on(run_plan message) {
  state_.check_restored();
  message.tensors = actors::describe_tensors(state_.specs());
  for (const auto& tensor : state_.specs())
    message.state_bytes += tensor.size_bytes();
  auto scope = runtime::activity::scope{activity_, activity_kind::control};
  for (;;) {
    protocol().complete(message);
    auto accepted = driver_.agree(message);
    if (accepted)
      break;
    if (is_custom() || !is_loss_of_group(accepted.error()))
      throw exception{std::move(accepted.error())};
    regroup(std::move(accepted.error()));
  }
  members_.locked()->on_plan_accepted();
  members_.prepare_checkpoints();
}

std::vector<double> train_context::impl::evaluate(std::uint64_t samples, std::size_t number_of_sums,
                                                  const runtime::evaluator::evaluation& function) {
  if (!protocol().has_agreed() && !members_.locked()->follows())
    state_.check_restored_so_far();
  return evaluator_.evaluate(samples, number_of_sums, function);
}

} // namespace troupe
