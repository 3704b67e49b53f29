#pragma once

#include <string>
#include <vector>

namespace troupe {
struct trainer_config;
}

namespace troupe::runtime {

/// Gives a valid configuration without a run name the name of a fresh directory, made of the program's name and the
/// time. The directory is made, so that no other program gets the same.
void name_run(trainer_config& config);

/// The arguments of this process, from its program's name on.
[[nodiscard]] std::vector<std::string> own_arguments();

/// Set to the name of a run, it has the driver of that run train in its own process (scaling.num_workers = 0).
inline constexpr const char* in_process_variable = "TROUPE_IN_PROCESS";

/// Does so if the variable names this run. A run without a name gets the variable's.
void obey_in_process_variable(trainer_config& config);

/// The lines that say how to go on with the run of this name in one process, which `arguments` have started.
[[nodiscard]] std::string in_one_process(const std::vector<std::string>& arguments, const std::string& name);

} // namespace troupe::runtime
