#pragma once

#include "trainer/starting_state.hpp"
#include <troupe/messages/begin.hpp>

#include <string>

namespace troupe {
struct trainer_config;
}

namespace troupe::actors {

/// `begin_training`, as far as it is the same for all workers of an attempt. `function` is the training function's
/// name, `directory` the run's.
[[nodiscard]] begin_training begin_message(const std::string& function, const std::string& directory, const run_id& run,
                                           const trainer_config& config, const starting_state& state);

} // namespace troupe::actors
