#pragma once

#include "node/local_launcher.hpp"

#include <troupe/app.hpp>
#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace troupe::runtime {

/// One worker, from joining its node to its release: a whole worker process, or some threads of a driver that trains in
/// its own process.
class worker_life {
 public:
  /// Called from any thread. In the first three, which come before anything is taken down, a worker process ends.
  struct hooks {
    /// The driver has released the worker, and does not wait for it.
    std::function<void()> released = [] {};
    std::function<void(const std::string& reason)> node_lost = [](const std::string&) {};
    /// It could not join, or a framework could not start.
    std::function<void(const error&)> failed = [](const error&) {};
    /// "r1 s120 digits": its rank, its last committed step and its run, some times a second.
    std::function<void(const std::string&)> progressed = [](const std::string&) {};
  };

  /// `functions` outlives this object. `descriptors` comes from the node's `descriptor_broker`.
  worker_life(const std::vector<function>& functions, worker_bootstrap bootstrap, collectives::unique_fd descriptors,
              hooks on);
  worker_life(const worker_life&) = delete;
  worker_life& operator=(const worker_life&) = delete;
  ~worker_life();

  /// Joins, trains, and returns when the driver has released the worker, or with what kept it from joining. Once.
  [[nodiscard]] expected<void> run();

  /// From any thread: the training function unwinds as soon as it calls its context, and `run` returns.
  void cancel();

  /// The worker's activity and the ranks for which it waits, for people. From any thread.
  [[nodiscard]] std::string describe();

 private:
  class impl;

  std::unique_ptr<impl> impl_;
};

} // namespace troupe::runtime
