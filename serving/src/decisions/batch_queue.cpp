#include "decisions/batch_queue.hpp"

#include <algorithm>

namespace troupe::serving {

std::optional<batch_queue::ticket> batch_queue::offer(std::uint64_t rows, time_point now, time_point deadline) {
  if (queued_rows_ > config_.max_queued_rows || rows > config_.max_queued_rows - queued_rows_)
    return std::nullopt;
  queued_rows_ += rows;
  waiting_.push_back({.number = ++last_, .rows = rows, .arrived = now, .deadline = deadline});
  return last_;
}

void batch_queue::put_back(ticket which, std::uint64_t rows, time_point deadline) {
  queued_rows_ += rows;
  waiting_.push_front({.number = which, .rows = rows, .arrived = {}, .deadline = deadline, .is_alone = true});
}

bool batch_queue::withdraw(ticket which) {
  const auto found = std::ranges::find(waiting_, which, &entry::number);
  if (found == waiting_.end())
    return false;
  queued_rows_ -= found->rows;
  waiting_.erase(found);
  return true;
}

batch_queue::decision batch_queue::next(time_point now) {
  drop_expired(now);
  if (waiting_.empty())
    return wait_for_request{};
  // Those that were put back are before all others.
  const auto is_alone = waiting_.front().is_alone;
  const auto full_at = waiting_.front().arrived + config_.max_delay;
  if (!is_alone && queued_rows_ < config_.max_rows && now < full_at)
    return wait_until{full_at};
  batch result;
  do {
    result.tickets.push_back(waiting_.front().number);
    result.rows += waiting_.front().rows;
    waiting_.pop_front();
  } while (!is_alone && !waiting_.empty() && result.rows + waiting_.front().rows <= config_.max_rows);
  queued_rows_ -= result.rows;
  return result;
}

void batch_queue::drop_expired(time_point now) {
  std::erase_if(waiting_, [&](const entry& each) {
    if (now < each.deadline)
      return false;
    queued_rows_ -= each.rows;
    return true;
  });
}

} // namespace troupe::serving
