#include <troupe/actors/decisions/failure_budget.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace troupe::actors {

void failure_budget::add(generation_id generation, step_id furthest) noexcept {
  if (furthest > row_.furthest)
    row_.count = 0;
  else if (generation == row_.generation)
    return;
  ++row_.count;
  row_.furthest = std::max(row_.furthest, furthest);
  row_.generation = generation;
}

std::string failure_budget::describe_excess() const {
  return fmt::format("this is failure number {} without a new step after step {}, more than failure.max_failures ({}) "
                     "allows",
                     row_.count, row_.furthest, most_);
}

void joiner_budget::add(ended_by who) noexcept {
  spent_ += who == ended_by::outside ? 1 : 10;
  ++in_row_;
}

bool joiner_budget::end_pause(run_time now) noexcept {
  if (!is_spent())
    return false;
  since_ = since_.value_or(now);
  if (now - *since_ < pause_)
    return false;
  since_.reset();
  pause_ = std::min(2 * pause_, longest_pause);
  // Any further failure is one too many.
  spent_ = limit - 1;
  return true;
}

} // namespace troupe::actors
