#pragma once

#include "trainer/run_files.hpp"
#include "trainer/starting_state.hpp"

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>

/// run.json: what a run is, for people and for `troupe replay`.
namespace troupe::actors {

/// The description from the run's last start; not a JSON object if there is none.
[[nodiscard]] nlohmann::json described_in(const std::filesystem::path& run_directory);

/// Says in a description which job its driver belongs to, if it belongs to one.
void describe_job(nlohmann::json& run, const submitted_job& job);

/// Whether a run was described by a driver of this job when the engine had started it before.
[[nodiscard]] bool is_of_earlier_start(const nlohmann::json& described, const submitted_job& job);

/// The description of a run that begins from this state. A resumed run that names no other checkpoint keeps the one
/// that the description `before` says it began with.
[[nodiscard]] nlohmann::json describe_run(const run_files_config& what, const starting_state& state,
                                          const nlohmann::json& before);

/// What a run is compared by when it is resumed.
[[nodiscard]] run_identity identity_of(const run_files_config& what);

} // namespace troupe::actors
