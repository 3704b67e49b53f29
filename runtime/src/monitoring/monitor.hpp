#pragma once

#include <troupe/actors/run_monitor.hpp>
#include <troupe/endpoint.hpp>
#include <troupe/error.hpp>

#include <functional>
#include <memory>

namespace troupe {
struct trainer_config;
}

namespace troupe::runtime {

/// A driver's HTTP endpoint and MLflow tracker, as the configuration asks for them. See `actors::monitor_factory`.
[[nodiscard]] expected<std::unique_ptr<actors::run_monitor>> open_monitor(const trainer_config& config,
                                                                          std::function<void(run_notice)> tell);

} // namespace troupe::runtime
