#pragma once

#include <troupe/actors/decisions/silence.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <sys/types.h>

namespace troupe::runtime {

using actors::process_sample;

/// Samples a process of this host and all its threads. A process that is gone has the state 'X'. Fails with
/// `errc::io_error` if /proc cannot be read. Reads two small files for each thread, so sample only workers whose
/// heartbeat is overdue.
[[nodiscard]] expected<process_sample> sample_process(pid_t pid);

/// The process that traces this one, such as a debugger; 0 if there is none.
[[nodiscard]] std::uint32_t tracer_of(pid_t pid);

} // namespace troupe::runtime
