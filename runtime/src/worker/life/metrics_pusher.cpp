#include "worker/life/metrics_pusher.hpp"

#include <chrono>
#include <tuple>

namespace troupe::runtime {

metrics_pusher::metrics_pusher(driver_client& driver, metrics_batch head)
    : driver_(driver), head_(std::move(head)), pending_(head_), pushed_(head_.applied) {
  thread_ = std::thread{[this] { loop(); }};
}

metrics_pusher::~metrics_pusher() {
  {
    auto lock = std::lock_guard{mutex_};
    phase_ = phase::stopping;
  }
  work_.notify_one();
  changed_.notify_all();
  thread_.join();
}

bool metrics_pusher::dirty() const noexcept {
  return !sealed_.empty() || has_pending();
}

bool metrics_pusher::has_pending() const noexcept {
  return !pending_.rows.empty() || !pending_.ledger.empty() || !pending_.pauses.empty() || !pending_.skipped.empty() ||
         !pending_.not_finite.empty() || !pending_.times.empty() ||
         pending_.applied != (sealed_.empty() ? pushed_ : sealed_.back().content.applied) || pending_.dropped > 0;
}

void metrics_pusher::wake() {
  if (phase_ == phase::idle)
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
    pending_.ledger.push_back(std::move(row));
  else
    ++pending_.dropped;
  ++changes_;
}

void metrics_pusher::record(pause_row row) {
  auto lock = std::lock_guard{mutex_};
  pending_.pauses.push_back(row);
  ++changes_;
}

void metrics_pusher::record(not_finite_row row) {
  auto lock = std::lock_guard{mutex_};
  pending_.not_finite.push_back(std::move(row));
  ++changes_;
  wake();
}

void metrics_pusher::record(times_row row) {
  auto lock = std::lock_guard{mutex_};
  if (pending_.times.size() < limit_rows)
    pending_.times.push_back(std::move(row));
  else
    ++pending_.dropped;
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
  while (!flush_within(std::chrono::hours{1}))
    continue;
}

bool metrics_pusher::flush_within(std::chrono::milliseconds limit) {
  auto lock = std::unique_lock{mutex_};
  ++flushing_;
  wake();
  changed_.notify_all();
  // Others may go on reporting meanwhile.
  const auto done = changed_.wait_for(lock, limit, [this, wanted = changes_] {
    return phase_ == phase::stopping || (phase_ != phase::pushing && !dirty()) || pushed_changes_ >= wanted;
  });
  --flushing_;
  return done;
}

void metrics_pusher::set_rank(rank_id rank) {
  std::ignore = flush_within(std::chrono::milliseconds{100});
  auto lock = std::lock_guard{mutex_};
  if (has_pending()) {
    auto rest = head_;
    rest.applied = pending_.applied;
    sealed_.push_back({std::exchange(pending_, std::move(rest)), changes_});
    if (sealed_.size() > limit_sealed) {
      auto& lost = sealed_.front().content;
      pending_.dropped += lost.rows.size() + lost.ledger.size() + lost.times.size() + lost.dropped;
      pending_.pauses.insert(pending_.pauses.begin(), lost.pauses.begin(), lost.pauses.end());
      pending_.skipped.insert(pending_.skipped.begin(), lost.skipped.begin(), lost.skipped.end());
      pending_.not_finite.insert(pending_.not_finite.begin(), lost.not_finite.begin(), lost.not_finite.end());
      sealed_.pop_front();
    }
    wake();
  }
  head_.rank = rank;
  pending_.rank = rank;
}

metrics_pusher::sealed_batch metrics_pusher::take() {
  sealed_batch result;
  if (!sealed_.empty()) {
    result = std::move(sealed_.front());
    sealed_.pop_front();
    pushed_ = result.content.applied;
  } else {
    result = {std::exchange(pending_, head_), changes_};
    pending_.applied = pushed_ = result.content.applied;
  }
  result.content.number = ++batches_;
  return result;
}

void metrics_pusher::loop() {
  using namespace std::chrono_literals;
  auto lock = std::unique_lock{mutex_};
  while (phase_ != phase::stopping) {
    phase_ = phase::idle;
    work_.wait(lock, [this] { return phase_ == phase::stopping || dirty(); });
    if (phase_ == phase::stopping)
      return;
    const auto next = take();
    phase_ = phase::pushing;
    lock.unlock();
    auto pushed = driver_.push(next.content);
    lock.lock();
    if (phase_ == phase::pushing)
      phase_ = phase::pausing;
    pushed_changes_ = next.changes;
    if (!pushed) {
      // The driver is gone or refuses the batch: drop the metrics.
      sealed_.clear();
      pending_ = head_;
      pending_.applied = pushed_;
    }
    changed_.notify_all();
    changed_.wait_for(lock, 20ms, [this] { return phase_ == phase::stopping || flushing_ > 0; });
  }
}

} // namespace troupe::runtime
