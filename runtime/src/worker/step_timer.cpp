#include "worker/step_timer.hpp"

#include <algorithm>
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

std::optional<times_row> step_timer::end(step_id step, generation_id generation, rank_id rank,
                                         clock::time_point now) noexcept {
  enter(step_phase::compute, now);
  std::optional<times_row> done;
  if (row_ && (row_->generation != generation || row_->rank != rank))
    done = take();
  if (!row_) {
    row_ = times_row{.rank = rank, .generation = generation, .first = step};
    row_began_ = now;
  }
  row_->last = step;
  ++row_->steps;
  for (std::size_t i = 0; i < step_.size(); ++i)
    sum_[i] += step_[i];
  if (!done && is_due(now))
    done = take();
  return done;
}

bool step_timer::is_due(clock::time_point now) const noexcept {
  const auto age = now - loop_began_.value_or(now);
  return now - row_began_ >= std::max(interval_, std::min<clock::duration>(age / part_of_age, longest_interval));
}

std::optional<times_row> step_timer::take() noexcept {
  if (!row_)
    return std::nullopt;
  const auto microseconds = [this](step_phase of) {
    const auto sum = sum_[static_cast<std::size_t>(of)];
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(sum).count());
  };
  row_->compute_us = microseconds(step_phase::compute);
  row_->wait_us = microseconds(step_phase::wait);
  row_->barrier_us = microseconds(step_phase::barrier);
  sum_ = {};
  return std::exchange(row_, std::nullopt);
}

} // namespace troupe::runtime
