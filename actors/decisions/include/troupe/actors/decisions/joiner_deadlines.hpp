#pragma once

#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/config.hpp>
#include <troupe/error.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace troupe::actors {

/// A joiner that takes too long.
struct overdue_joiner {
  worker_id worker;
  /// "it did not join in time"
  std::string what;
  error reason;
};

/// Joiners that take longer than `start_timeout` from the start of their process until they join, or longer than
/// `failure.replace_after` without progress until they reach their loop: what the training function does before it is
/// user code, too.
[[nodiscard]] std::vector<overdue_joiner> find_overdue(const worker_table& workers, const failure_config& failure,
                                                       std::chrono::milliseconds start_timeout, run_time now);

/// The joiners that ask for a place, if it is time to let them in: joiners that come about the same time are let in
/// together, and one that takes longer than half a second is not waited for. Else nothing.
[[nodiscard]] std::vector<worker_record*> find_due(worker_table& workers, run_time now);

} // namespace troupe::actors
