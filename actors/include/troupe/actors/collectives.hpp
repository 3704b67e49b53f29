#pragma once

#include <troupe/actors/handles.hpp>

#include <caf/fwd.hpp>

namespace troupe::actors {

/// Spawns the collectives actor of one run.
[[nodiscard]] collectives_actor spawn_collectives(caf::actor_system& system);

} // namespace troupe::actors
