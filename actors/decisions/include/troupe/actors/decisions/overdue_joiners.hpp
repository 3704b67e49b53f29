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

} // namespace troupe::actors
