#pragma once

#include <troupe/app.hpp>

#include <vector>

namespace troupe::runtime {

/// Names the file that asks a program to repeat steps of a run.
inline constexpr auto replay_variable = "TROUPE_REPLAY";

/// If `troupe replay` has started this process: repeats the steps that it asks for, in a directory of its own, and ends
/// the process. The program's own `main` does not go on then.
void run_if_replay(const std::vector<function>& functions);

} // namespace troupe::runtime
