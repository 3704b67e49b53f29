#include "dispatcher.hpp"

#include <ranges>
#include <utility>

namespace troupe::serving {

void pending_request::complete(prediction_outcome outcome) noexcept {
  {
    const auto lock = std::lock_guard{mutex_};
    if (outcome_)
      return;
    outcome_ = std::move(outcome);
  }
  done_.notify_one();
}

prediction_outcome pending_request::wait_until(time_point deadline) {
  auto lock = std::unique_lock{mutex_};
  if (!done_.wait_until(lock, deadline, [this] { return outcome_.has_value(); }))
    return unanswered::late;
  return std::move(*outcome_);
}

prediction_outcome dispatcher::predict(row_values rows, time_point deadline) {
  const auto count = rows.rows;
  auto request = std::make_shared<pending_request>(std::move(rows));
  batch_queue::ticket number = 0;
  {
    const auto lock = std::lock_guard{mutex_};
    if (is_stopped_)
      return unanswered::stopped;
    const auto ticket = queue_.offer(count, std::chrono::steady_clock::now(), deadline);
    if (!ticket)
      return unanswered::queue_full;
    number = *ticket;
    request->admit(number, deadline);
    requests_.emplace(number, request);
  }
  changed_.notify_one();
  auto outcome = request->wait_until(deadline);
  const auto lock = std::lock_guard{mutex_};
  (void)queue_.withdraw(number);
  requests_.erase(number);
  retried_.erase(number);
  return outcome;
}

std::vector<pending_ptr> dispatcher::take(std::uint64_t version) {
  auto lock = std::unique_lock{mutex_};
  while (!is_stopped_ && model_->version == version) {
    const auto what = queue_.next(std::chrono::steady_clock::now());
    if (const auto* batch = std::get_if<batch_queue::batch>(&what)) {
      std::vector<pending_ptr> result;
      for (auto each : batch->tickets) {
        // Who has given up has taken it away.
        if (const auto found = requests_.find(each); found != requests_.end())
          result.push_back(found->second);
      }
      if (result.empty())
        continue;
      // The call for these may have been this replica's: another one sleeps.
      if (queue_.queued_requests() > 0)
        changed_.notify_one();
      return result;
    }
    if (const auto* later = std::get_if<batch_queue::wait_until>(&what))
      changed_.wait_until(lock, later->when);
    else
      changed_.wait(lock);
  }
  return {};
}

void dispatcher::put_back(const std::vector<pending_ptr>& batch) {
  {
    const auto lock = std::lock_guard{mutex_};
    // The first of them ends up in front.
    for (const auto& each : batch | std::views::reverse) {
      if (!requests_.contains(each->number()))
        continue;
      if (retried_.insert(each->number()).second)
        queue_.put_back(each->number(), each->rows().rows, each->deadline());
      else
        each->complete(error{errc::worker_lost, "two replicas in a row ended while they predicted for these rows"});
    }
  }
  changed_.notify_all();
}

bool dispatcher::await_while_served(std::uint64_t version, std::chrono::milliseconds time) {
  auto lock = std::unique_lock{mutex_};
  return !changed_.wait_for(lock, time, [&] { return is_stopped_ || model_->version != version; });
}

void dispatcher::serve(model_face_ptr model) {
  {
    const auto lock = std::lock_guard{mutex_};
    model_ = std::move(model);
  }
  changed_.notify_all();
}

model_face_ptr dispatcher::model() const {
  const auto lock = std::lock_guard{mutex_};
  return model_;
}

void dispatcher::stop() {
  const auto lock = std::lock_guard{mutex_};
  is_stopped_ = true;
  for (const auto& [number, each] : requests_)
    each->complete(unanswered::stopped);
  changed_.notify_all();
}

std::uint64_t dispatcher::queued_rows() const {
  const auto lock = std::lock_guard{mutex_};
  return queue_.queued_rows();
}

std::size_t dispatcher::queued_requests() const {
  const auto lock = std::lock_guard{mutex_};
  return queue_.queued_requests();
}

} // namespace troupe::serving
