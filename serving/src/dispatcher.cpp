#include "dispatcher.hpp"

#include <utility>

namespace troupe::serving {

namespace {

const auto stopped_text = "the server stops: send the request to another one";

} // namespace

void pending_request::complete(expected<result> outcome) {
  {
    const auto lock = std::lock_guard{mutex_};
    outcome_ = std::move(outcome);
  }
  done_.notify_one();
}

std::optional<expected<pending_request::result>> pending_request::wait_until(time_point deadline) {
  auto lock = std::unique_lock{mutex_};
  done_.wait_until(lock, deadline, [this] { return outcome_.has_value(); });
  return std::exchange(outcome_, std::nullopt);
}

expected<pending_request::result> dispatcher::predict(row_values rows, time_point deadline) {
  const auto count = rows.rows;
  auto request = std::make_shared<pending_request>(std::move(rows));
  batch_queue::ticket number = 0;
  {
    const auto lock = std::lock_guard{mutex_};
    if (is_stopped_)
      return fail(errc::stopped, stopped_text);
    const auto ticket = queue_.offer(count, std::chrono::steady_clock::now(), deadline);
    if (!ticket)
      return fail(errc::unsatisfiable, "as many rows wait as may: try again, or ask for more replicas");
    number = *ticket;
    waiting_.emplace(number, request);
  }
  changed_.notify_one();
  auto outcome = request->wait_until(deadline);
  if (!outcome) {
    const auto lock = std::lock_guard{mutex_};
    (void)queue_.withdraw(number);
    waiting_.erase(number);
    return fail(errc::timed_out, "the prediction did not come in time: try again, or ask for more replicas");
  }
  return std::move(*outcome);
}

std::vector<pending_ptr> dispatcher::take(std::uint64_t version) {
  auto lock = std::unique_lock{mutex_};
  while (!is_stopped_ && model_->version == version) {
    const auto what = queue_.next(std::chrono::steady_clock::now());
    if (const auto* batch = std::get_if<batch_queue::batch>(&what)) {
      std::vector<pending_ptr> result;
      for (auto each : batch->tickets) {
        // Who has given up has taken it away.
        if (auto found = waiting_.extract(each))
          result.push_back(std::move(found.mapped()));
      }
      if (!result.empty())
        return result;
    } else if (const auto* later = std::get_if<batch_queue::wait_until>(&what)) {
      changed_.wait_until(lock, later->when);
    } else {
      changed_.wait(lock);
    }
  }
  return {};
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
  std::map<batch_queue::ticket, pending_ptr> left;
  {
    const auto lock = std::lock_guard{mutex_};
    is_stopped_ = true;
    left.swap(waiting_);
  }
  changed_.notify_all();
  for (auto& [number, each] : left)
    each->complete(fail(errc::stopped, stopped_text));
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
