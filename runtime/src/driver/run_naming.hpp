#pragma once

#include <troupe/config.hpp>

namespace troupe::runtime {

/// Gives a valid configuration without a run name the name of a fresh directory, made of the program's name and the
/// time. The directory is made, so that no other program gets the same.
void name_run(trainer_config& config);

} // namespace troupe::runtime
