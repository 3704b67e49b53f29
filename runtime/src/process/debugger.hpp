#pragma once

#include <troupe/types.hpp>

#include <optional>
#include <string>

namespace troupe::runtime {

/// Prints how to attach a debugger to this process on `host`, and returns once one is attached. From then on, any
/// process of the same user may attach.
void wait_for_debugger(const std::string& host);

/// Gives the process's first thread a name, of which the kernel keeps 15 bytes: `ps -e`, `top` and gdb show it. From
/// any thread.
void set_process_name(const std::string& name);

/// The name of a worker in training, and the step in such a name; nothing in another, or if it may be cut off.
[[nodiscard]] std::string worker_name(rank_id rank, step_id committed, const std::string& run);
[[nodiscard]] std::optional<step_id> committed_step_in(const std::string& name);

} // namespace troupe::runtime
