#include <troupe/collectives/call_queue.hpp>

#include <utility>

namespace troupe::collectives {

struct pending_call::state {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_done = false;
  expected<void> result;

  void end_with(expected<void> outcome) {
    {
      const std::lock_guard lock{mutex};
      result = std::move(outcome);
      is_done = true;
    }
    changed.notify_all();
  }
};

bool pending_call::is_done() const {
  if (!state_)
    return true;
  const std::lock_guard lock{state_->mutex};
  return state_->is_done;
}

expected<void> pending_call::wait() const {
  if (!state_)
    return {};
  std::unique_lock lock{state_->mutex};
  state_->changed.wait(lock, [this] { return state_->is_done; });
  return state_->result;
}

call_queue::~call_queue() {
  stop();
}

pending_call call_queue::start(std::function<expected<void>()> call) {
  pending_call result;
  result.state_ = std::make_shared<pending_call::state>();
  auto is_accepted = false;
  {
    const std::lock_guard lock{mutex_};
    if (!is_stopping_) {
      is_accepted = true;
      waiting_.push_back({std::move(call), result.state_});
      if (!thread_.joinable())
        thread_ = std::thread{[this] { run(); }};
    }
  }
  if (!is_accepted)
    result.state_->end_with(fail(errc::aborted, "the call was started while the group was being left"));
  changed_.notify_all();
  return result;
}

void call_queue::wait_until_idle() {
  std::unique_lock lock{mutex_};
  if (thread_.get_id() == std::this_thread::get_id())
    return;
  changed_.wait(lock, [this] { return waiting_.empty() && !is_running_; });
}

void call_queue::stop() {
  {
    const std::lock_guard lock{mutex_};
    is_stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable())
    thread_.join();
}

void call_queue::run() {
  std::unique_lock lock{mutex_};
  for (;;) {
    changed_.wait(lock, [this] { return is_stopping_ || !waiting_.empty(); });
    if (waiting_.empty())
      return;
    auto next = std::move(waiting_.front());
    waiting_.pop_front();
    is_running_ = true;
    const auto is_given_up = is_stopping_;
    lock.unlock();
    // The call's captures are destroyed before anyone learns that it has ended.
    auto outcome =
        is_given_up ? expected<void>{fail(errc::aborted, "the group was left before this call was made")} : next.call();
    next.call = nullptr;
    next.state->end_with(std::move(outcome));
    lock.lock();
    is_running_ = false;
    changed_.notify_all();
  }
}

} // namespace troupe::collectives
