#include "worker/session.hpp"

#include <array>
#include <fmt/format.h>
#include <utility>

/// Custom loops: collectives and reports of a training function that does not use `for_each_step`. A lost peer ends the
/// function, which is started again from the latest checkpoint.
namespace troupe {

void train_context::impl::lose_custom_group(error reason) {
  if (is_loss_of_group(reason))
    kind_ = loop_kind::custom_lost;
  throw exception{std::move(reason)};
}

void train_context::impl::refuse_in_body(std::string_view what) const {
  if (body_of_)
    throw exception{errc::user_error,
                    fmt::format("{} in the body of step {}: its result would depend on the number of workers, and a "
                                "worker that joins repeats the body alone. Contribute with shard.gradient() and "
                                "shard.add(), take the results from step.all_reduce() and step.mean(), and report "
                                "with step.report(); or call it outside the loop of steps",
                                what, *body_of_)};
}

void train_context::impl::report(metric_map values, save_checkpoint checkpoint) {
  refuse_in_body("ctx.report()");
  if (kind_ != loop_kind::custom_lost)
    kind_ = loop_kind::custom;
  evaluator_.end_with_group();
  members_.locked()->count_step();
  const auto step = protocol().step();
  report_step(step, std::move(values));
  pusher_.applied(step);
  if (checkpoint == save_checkpoint::yes)
    report_with_checkpoint(step);
}

void train_context::impl::report_with_checkpoint(step_id step) {
  // Parts of different steps would wait for each other for ever.
  enum : std::size_t { number, inverted_number, in_flight, stop, count };
  std::array<std::uint64_t, count> words{};
  words[number] = step.value;
  words[inverted_number] = ~step.value;
  words[in_flight] = checkpoints_.barrier_words().in_flight;
  words[stop] = stop_requested_ ? 1 : 0;
  call_group([&](auto& group) { return group.barrier(words); });
  if (words[number] != ~words[inverted_number])
    throw exception{errc::mismatch,
                    fmt::format("the ranks report a checkpoint at different steps, {} and {}: each report counts as a "
                                "step, so every rank has to report equally often",
                                ~words[inverted_number], words[number])};
  // A checkpoint says which run it belongs to, and cannot be resumed otherwise.
  if (!protocol().has_agreed()) {
    members_.prepare_checkpoints_always();
    run_plan message;
    message.steps = settings().steps;
    agree_on(std::move(message));
  }
  checkpoints_.on_barrier(place().generation, {words[in_flight], false});
  save_at_boundary(step, {.is_last = words[stop] != 0 || step.value == settings().steps, .is_due = true},
                   [](error reason) { throw exception{std::move(reason)}; });
}

} // namespace troupe
