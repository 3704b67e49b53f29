#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>
#include <troupe/types.hpp>

#include <optional>
#include <string>

namespace troupe::actors {

/// How the first training function to return ended; all others must end in the same way.
struct run_end {
  step_id step;
  /// Identity of the tracked state.
  std::string state_sha256;
  /// `stopped` if any of them returned because a stop was asked for.
  run_status status = run_status::completed;

  /// The end that a worker reports.
  [[nodiscard]] static run_end of(const worker_finished& message);

  /// Another worker, whose name is `who`, has returned. The error says how its end differs from this one.
  [[nodiscard]] std::optional<error> compare(const worker_finished& message, const std::string& who) const;
};

} // namespace troupe::actors
