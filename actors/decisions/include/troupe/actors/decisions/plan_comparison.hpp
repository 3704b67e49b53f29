#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/worker.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// The plan of the run that a checkpoint is from. A run that resumes from it must have the same.
struct resumed_plan {
  std::uint64_t batch_samples = 0;
  std::string data_fingerprint;
  std::string tensors;
  /// JSON text of the numerics fingerprint.
  std::string numerics;
};

/// How the plans of two workers differ, for people; nothing if they agree. `here` and `there` name the workers: "on
/// worker 1 (rank 1)".
[[nodiscard]] std::optional<error> compare_plans(const run_plan& ours, const std::string& here, const run_plan& theirs,
                                                 const std::string& there);

/// Why a run with this plan cannot resume from that checkpoint; nothing if it can.
[[nodiscard]] std::optional<error> compare_with_checkpoint(const run_plan& plan, const resumed_plan& old);

/// The user's options for a run that differs from its checkpoint.
inline constexpr std::string_view ways_on =
    "Go on with what the run was begun with; or begin anew beside it with resume_mode::restart (--resume restart); or "
    "choose another name (run.name, --name); or begin a new run with the checkpoint's state (load_checkpoint, --from)";

/// "\n  first\n  second"
[[nodiscard]] std::string join_lines(const std::vector<std::string>& lines);

} // namespace troupe::actors
