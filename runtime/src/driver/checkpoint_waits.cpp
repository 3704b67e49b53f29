#include "driver/checkpoint_waits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace troupe::runtime {

checkpoint_waits::answer checkpoint_waits::add() {
  auto lock = std::lock_guard{mutex_};
  wait added{done_, {}};
  auto result = added.promise.get_future().share();
  if (is_running_)
    waits_.push_back(std::move(added));
  else
    added.promise.set_value(fail(errc::invalid_argument, "cannot save a checkpoint: no run is under way"));
  return result;
}

void checkpoint_waits::on_begin() {
  auto lock = std::lock_guard{mutex_};
  is_running_ = true;
  done_ = 0;
}

void checkpoint_waits::on(const run_progress& event) {
  auto lock = std::lock_guard{mutex_};
  done_ = event.step;
}

void checkpoint_waits::on(const checkpoint_saved& event) {
  answer_for(event.step.value, std::filesystem::path{event.path});
}

void checkpoint_waits::on(const checkpoint_skipped& event) {
  answer_for(event.step.value,
             fail(errc::busy, fmt::format("the checkpoint of step {} was skipped: earlier ones are still being written",
                                          event.step.value)));
}

void checkpoint_waits::on(const checkpoint_failed& event) {
  answer_for(event.step.value, fail(event.reason));
}

void checkpoint_waits::on_end(const run_result& result) {
  if (result.status != run_status::failed && !result.latest_checkpoint.empty())
    answer_for(result.steps, std::filesystem::path{result.latest_checkpoint});
  const auto why = result.reason.message.empty() ? "the run has ended without another checkpoint"
                                                 : "the run has ended: " + result.reason.message;
  answer_for(std::numeric_limits<std::uint64_t>::max(), fail(errc::aborted, why));
  auto lock = std::lock_guard{mutex_};
  is_running_ = false;
}

void checkpoint_waits::answer_for(std::uint64_t step, const expected<std::filesystem::path>& what) {
  auto lock = std::lock_guard{mutex_};
  const auto answered = std::ranges::partition(waits_, [&](const wait& each) { return each.after >= step; });
  for (auto& each : answered)
    each.promise.set_value(what);
  waits_.erase(answered.begin(), answered.end());
}

} // namespace troupe::runtime
