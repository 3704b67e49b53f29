#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/worker.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

/// What a checkpoint that is resumed from says of its run; a new plan must not differ in any of it.
struct resumed_plan {
  std::uint64_t batch_samples = 0;
  std::string data_fingerprint;
  std::string tensors;
  /// JSON text of the numerics fingerprint.
  std::string numerics;
};

/// What two workers say differently about the same run, for people; nothing where they agree. `here` and `there` name
/// them: "on worker 1 (rank 1)".
[[nodiscard]] std::optional<error> compare_plans(const run_plan& ours, const std::string& here, const run_plan& theirs,
                                                 const std::string& there);

/// Why a run with this plan cannot go on from that checkpoint; nothing where it can.
[[nodiscard]] std::optional<error> compare_with_checkpoint(const run_plan& plan, const resumed_plan& old);

/// "\n  first\n  second"
[[nodiscard]] std::string join_lines(const std::vector<std::string>& lines);

} // namespace troupe::actors
