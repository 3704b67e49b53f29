#include "worker/step/step_timer.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

/// A loop of one hour has rows of up to six seconds, one of a day some 3,000 rows of each rank.
constexpr auto longest_interval = 60s;
constexpr auto part_of_age = 600;

} // namespace

void step_timer::begin(clock::time_point now) noexcept {
  loop_began_ = loop_began_.value_or(now);
  step_ = {};
  phase_ = step_phase::compute;
  since_ = now;
}

void step_timer::enter(step_phase next, clock::time_point now) noexcept {
  step_[static_cast<std::size_t>(phase_)] += now - since_;
  phase_ = next;
  since_ = now;
}

void step_timer::leave_out(clock::time_point now) noexcept {
  phase_ = step_phase::compute;
  since_ = now;
}

std::optional<times_row> step_timer::end(step_id step, generation_id generation, rank_id rank, clock::time_point now) {
  enter(step_phase::compute, now);
  std::optional<times_row> done;
  if (row_ && (row_->generation != generation || row_->rank != rank))
    done = take();
  if (!row_) {
    row_.emplace();
    row_->rank = rank;
    row_->generation = generation;
    row_->first = step;
    row_began_ = now;
  }
  row_->last = step;
  ++row_->steps;
  row_->sent_bytes += std::exchange(step_sent_, 0);
  for (std::size_t i = 0; i < step_.size(); ++i)
    sum_[i] += step_[i];
  count(std::accumulate(step_.begin(), step_.end(), clock::duration{}));
  if (!done && is_due(now))
    done = take();
  return done;
}

void step_timer::count(clock::duration step) noexcept {
  const auto us = static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(step).count());
  const auto bin = std::ranges::lower_bound(step_duration_bounds_us, us) - step_duration_bounds_us.begin();
  ++durations_[static_cast<std::size_t>(bin)];
}

bool step_timer::is_due(clock::time_point now) const noexcept {
  const auto age = now - loop_began_.value_or(now);
  return now - row_began_ >= std::max(interval_, std::min<clock::duration>(age / part_of_age, longest_interval));
}

std::optional<times_row> step_timer::take() {
  if (!row_)
    return std::nullopt;
  const auto microseconds = [](clock::duration time) {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
  };
  row_->compute_us = microseconds(sum_[static_cast<std::size_t>(step_phase::compute)]);
  row_->wait_us = microseconds(sum_[static_cast<std::size_t>(step_phase::wait)]);
  row_->barrier_us = microseconds(sum_[static_cast<std::size_t>(step_phase::barrier)]);
  row_->checkpoint_us = microseconds(std::exchange(checkpoint_, {}));
  row_->durations.assign(durations_.begin(), durations_.end());
  durations_ = {};
  sum_ = {};
  return std::exchange(row_, std::nullopt);
}

} // namespace troupe::runtime
