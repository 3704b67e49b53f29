#include <troupe/actors/decisions/failure_budget.hpp>

#include <fmt/format.h>

#include <algorithm>

namespace troupe::actors {

bool failure_budget::holds(run_time now) {
  while (!recent_.empty() && now - recent_.front() > window_)
    recent_.pop_front();
  return recent_.size() <= most_;
}

std::string failure_budget::describe_excess() const {
  return fmt::format("this is failure number {} within {} s, more than failure.max_failures ({}) allows",
                     recent_.size(), std::chrono::duration_cast<std::chrono::seconds>(window_).count(), most_);
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
