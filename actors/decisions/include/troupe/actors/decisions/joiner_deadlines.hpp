#pragma once

#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/config/failure.hpp>
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

/// Joiners that exceed `start_timeout` between the start of their process and joining, or `failure.replace_after`
/// without progress on the way to their loop, which is user code.
[[nodiscard]] std::vector<overdue_joiner> find_overdue(const worker_table& workers, const failure_config& failure,
                                                       std::chrono::milliseconds start_timeout, run_time now);

/// The joiners to let in now, or none: joiners that arrive at about the same time are let in together, with a wait of
/// at most half a second.
[[nodiscard]] std::vector<worker_record*> find_due(worker_table& workers, run_time now);

} // namespace troupe::actors
