#include <troupe/actors/decisions/failure_budget.hpp>

#include <fmt/format.h>

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

} // namespace troupe::actors
