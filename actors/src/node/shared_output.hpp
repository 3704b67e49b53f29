#pragma once

#include <troupe/actors/decisions/output_buffer.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/types.hpp>

#include <map>
#include <mutex>
#include <optional>
#include <utility>

namespace troupe::actors {

/// The output lines of all runs' workers. The launcher's thread adds them and the node takes them. They bypass the
/// node's mailbox, where heartbeats would wait behind them.
class shared_output {
 public:
  /// Returns whether the node must be notified.
  bool add(worker_output output) {
    auto lock = std::lock_guard{mutex_};
    const auto run = output.run;
    return runs_[run].add(std::move(output));
  }
  [[nodiscard]] std::optional<worker_output> take(const run_id& run) {
    auto lock = std::lock_guard{mutex_};
    auto i = runs_.find(run);
    return i == runs_.end() ? std::nullopt : i->second.take();
  }
  [[nodiscard]] bool empty(const run_id& run) {
    auto lock = std::lock_guard{mutex_};
    auto i = runs_.find(run);
    return i == runs_.end() || i->second.empty();
  }
  void forget(const run_id& run) {
    auto lock = std::lock_guard{mutex_};
    runs_.erase(run);
  }

 private:
  std::mutex mutex_;
  std::map<run_id, output_buffer> runs_;
};

} // namespace troupe::actors
