#pragma once

#include <troupe/app.hpp>

#include <vector>

namespace troupe::runtime {

/// Whether this process was started by a node to be a worker.
[[nodiscard]] bool is_worker_process() noexcept;

/// The whole life of a worker process: joins its node, trains, and ends the process.
[[noreturn]] void run_worker_process(const std::vector<function>& functions);

} // namespace troupe::runtime
