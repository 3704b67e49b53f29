#pragma once

#include "node/local_launcher.hpp"

#include <troupe/actors/process_launcher.hpp>
#include <troupe/app.hpp>

#include <memory>

namespace troupe::runtime {

/// Runs one worker at a time on threads of this process: for debuggers, profilers and sanitizers. A killed worker ends
/// when its training function next calls its context; if it never does, it stays until the process ends.
[[nodiscard]] actors::launcher_factory make_in_process_launcher(function train,
                                                                std::shared_ptr<const worker_entry> entry);

} // namespace troupe::runtime
