#pragma once

#include <troupe/result.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>
#include <troupe/types.hpp>

#include <string>
#include <vector>

/// Which programs have computed the steps of a run that went on with a changed one. Pure functions.
namespace troupe::actors {

/// The items of a numerics fingerprint (JSON text) about a host's libraries and their results, and all other items:
/// processor, device, modes and threads. Text that is not a JSON object has no items.
[[nodiscard]] std::string libraries_in(const std::string& numerics);
[[nodiscard]] std::string without_libraries(const std::string& numerics);

/// Of this build, with this configuration (JSON text) and what workers with this numerics fingerprint compute with. Its
/// steps are not set.
[[nodiscard]] program_span describe_program(const std::string& build_id, const std::string& configuration,
                                            const std::string& numerics);

/// The programs that have computed the state of a checkpoint, oldest first.
[[nodiscard]] std::vector<program_span> programs_of(const serialization::manifest& content);

/// Appends `now`, which continues after `step`, to the programs before it.
[[nodiscard]] std::vector<program_span> go_on_with(std::vector<program_span> before, program_span now, step_id step);

/// All but the last, as a manifest has them.
[[nodiscard]] std::string earlier_programs_json(const std::vector<program_span>& programs);

} // namespace troupe::actors
