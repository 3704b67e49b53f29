#pragma once

#include <troupe/actors/decisions/silence.hpp>
#include <troupe/error.hpp>

#include <sys/types.h>

namespace troupe::runtime {

using actors::process_sample;

/// Looks at a process of this host, and at each of its threads. One that is gone has the state 'X'. Fails with
/// `errc::io_error` when /proc cannot be read. Reads two small files for each thread: for those who are overdue, not
/// for everybody at every beat.
[[nodiscard]] expected<process_sample> sample_process(pid_t pid);

} // namespace troupe::runtime
