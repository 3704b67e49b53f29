#pragma once

#include <troupe/config.hpp>
#include <troupe/error.hpp>

#include <optional>
#include <string>

namespace troupe::tool {

/// `end_job` and `find_job` for systemd alone.
[[nodiscard]] expected<std::optional<std::string>> end_systemd_job(const submitted_job& job);
[[nodiscard]] std::optional<submitted_job> find_systemd_job(const std::string& name);

} // namespace troupe::tool
