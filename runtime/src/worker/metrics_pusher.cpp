#include "worker/metrics_pusher.hpp"

#include <chrono>

namespace troupe::runtime {

metrics_pusher::metrics_pusher(driver_client& link, metrics_batch head)
    : link_(link), head_(std::move(head)), pending_(head_), pushed_(head_.applied) {
  thread_ = std::thread{[this] { loop(); }};
}

metrics_pusher::~metrics_pusher() {
  {
    auto lock = std::lock_guard{mutex_};
    stop_ = true;
    wake();
  }
  changed_.notify_all();
  thread_.join();
}

bool metrics_pusher::dirty() const noexcept {
  return !pending_.rows.empty() || !pending_.ledger.empty() || !pending_.pauses.empty() || !pending_.skipped.empty() ||
         pending_.applied != pushed_ || pending_.dropped > 0;
}

void metrics_pusher::wake() {
  if (idle_)
    work_.notify_one();
}

void metrics_pusher::report(metric_row row) {
  auto lock = std::lock_guard{mutex_};
  if (pending_.rows.size() < limit_rows)
    pending_.rows.push_back(std::move(row));
  else
    ++pending_.dropped;
  ++changes_;
  wake();
}

void metrics_pusher::record(ledger_row row) {
  auto lock = std::lock_guard{mutex_};
  if (pending_.ledger.size() < limit_rows)
    pending_.ledger.push_back(row);
  else
    ++pending_.dropped;
  ++changes_;
}

void metrics_pusher::record(pause_row row) {
  auto lock = std::lock_guard{mutex_};
  pending_.pauses.push_back(row);
  ++changes_;
}

void metrics_pusher::skipped(step_id step) {
  auto lock = std::lock_guard{mutex_};
  pending_.skipped.push_back(step);
  ++changes_;
  wake();
}

void metrics_pusher::applied(step_id step) {
  auto lock = std::lock_guard{mutex_};
  pending_.applied = step;
  ++changes_;
  wake();
}

void metrics_pusher::flush() {
  auto lock = std::unique_lock{mutex_};
  ++flushing_;
  wake();
  changed_.notify_all();
  // Others may go on reporting meanwhile.
  changed_.wait(lock, [this, wanted = changes_] { return stop_ || (!busy_ && !dirty()) || pushed_changes_ >= wanted; });
  --flushing_;
}

void metrics_pusher::set_rank(rank_id rank) {
  flush();
  auto lock = std::lock_guard{mutex_};
  head_.rank = rank;
  pending_.rank = rank;
}

void metrics_pusher::loop() {
  using namespace std::chrono_literals;
  auto lock = std::unique_lock{mutex_};
  for (;;) {
    idle_ = true;
    work_.wait(lock, [this] { return stop_ || dirty(); });
    idle_ = false;
    if (stop_)
      return;
    auto batch = std::exchange(pending_, head_);
    pending_.applied = pushed_ = batch.applied;
    auto changes = changes_;
    busy_ = true;
    lock.unlock();
    auto pushed = link_.push(batch);
    lock.lock();
    busy_ = false;
    pushed_changes_ = changes;
    if (!pushed && pushed.error().code == errc::timed_out) {
      // Nobody knows whether it has them. What has come since is not lost with them.
      pending_.dropped += batch.rows.size() + batch.dropped;
    } else if (!pushed) {
      // The driver is gone or does not want them: nobody is left to tell.
      pending_ = head_;
      pending_.applied = pushed_;
    }
    changed_.notify_all();
    changed_.wait_for(lock, 20ms, [this] { return stop_ || flushing_ > 0; });
  }
}

} // namespace troupe::runtime
