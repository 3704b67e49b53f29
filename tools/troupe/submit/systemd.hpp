#pragma once

#include "submit/engines.hpp"

#include <filesystem>

namespace troupe::tool {

/// The functions of engines.hpp for systemd alone. `above` is a directory that the job must run above; empty: any.
[[nodiscard]] expected<std::optional<std::string>> end_systemd_job(const submitted_job& job);
[[nodiscard]] std::optional<submitted_job> find_systemd_job(const std::string& name,
                                                            const std::filesystem::path& above);
[[nodiscard]] job_state state_of_unit(const std::string& unit);

/// Whether a directory is another one, or in it.
[[nodiscard]] bool is_above(const std::filesystem::path& directory, const std::filesystem::path& other);

} // namespace troupe::tool
