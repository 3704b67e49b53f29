#include <troupe/actors/decisions/worker_watch.hpp>

#include <utility>

namespace troupe::actors {

void worker_watch::heard(const worker_beat& beat, clock::time_point now) {
  monitor_.heard(beat.worker, now);
  first_samples_.erase(beat.worker);
  silent_.erase(beat.worker);
  held_.erase(beat.worker);
  beats_.insert_or_assign(beat.worker, beat);
  unreported_.insert(beat.worker);
}

void worker_watch::expect_end(worker_id worker) {
  monitor_.remove(worker);
  first_samples_.erase(worker);
  silent_.erase(worker);
  held_.erase(worker);
}

void worker_watch::remove(worker_id worker) {
  expect_end(worker);
  beats_.erase(worker);
  unreported_.erase(worker);
}

std::vector<worker_watch::finding> worker_watch::judge(clock::time_point now, const sampler& sample) {
  std::vector<finding> result;
  const auto silent = monitor_.silent(now);
  // One fault often silences several workers. Report them together.
  const auto is_early = monitor_.anyone_quiet(now);
  for (const auto& [worker, silent_for] : silent) {
    if (is_early && silent_for < timeout_ * 3 / 2) {
      monitor_.spare(worker);
      continue;
    }
    const auto current = sample(worker);
    if (!current) {
      result.push_back({worker, "is silent, and its process cannot be sampled: " + current.error().message});
      monitor_.spare(worker);
      continue;
    }
    const auto& before = first_samples_.emplace(worker, *current).first->second;
    const auto verdict =
        judge_silence({before.worker, current->worker}, {before.node, current->node}, silent_for, timeout_);
    const auto is_debugged = verdict.cause == silence_cause::debugged;
    const auto is_let_go = !is_debugged && held_.erase(worker) > 0;
    if (is_debugged)
      held_.insert(worker);
    // The time in a debugger is not the worker's: once it is let go, it has as long for a heartbeat as any other, and
    // is reported as held until then.
    if (is_debugged || is_let_go) {
      monitor_.heard(worker, now);
      first_samples_.erase(worker);
    }
    if (is_let_go)
      continue;
    if (!verdict.is_silent) {
      monitor_.spare(worker);
      continue;
    }
    auto current_silence = silent_worker{worker, "its process " + verdict.reason,
                                         is_debugged ? silence_kind::debugged : silence_kind::frozen};
    auto& known = silent_[worker];
    if (known == current_silence)
      continue;
    known = std::move(current_silence);
    result.push_back({worker, "is silent: " + known.why});
  }
  for (const auto& [worker, silent_for] : monitor_.overdue(now))
    if (auto current = sample(worker))
      first_samples_.insert_or_assign(worker, std::move(*current));
  return result;
}

node_beat worker_watch::take_report(const run_id& run) {
  node_beat result{run, {}};
  for (auto worker : std::exchange(unreported_, {}))
    result.workers.push_back(beats_.at(worker));
  for (const auto& [worker, silent] : silent_)
    result.silent.push_back(silent);
  return result;
}

const worker_beat* worker_watch::last_beat(worker_id worker) const {
  const auto found = beats_.find(worker);
  return found == beats_.end() ? nullptr : &found->second;
}

} // namespace troupe::actors
