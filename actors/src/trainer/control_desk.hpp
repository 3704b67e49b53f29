#pragma once

#include "local_messages.hpp"
#include <troupe/actors/decisions/run_status_model.hpp>
#include <troupe/actors/handles.hpp>
#include <troupe/actors/trainer.hpp>

#include <caf/actor_control_block.hpp>
#include <caf/fwd.hpp>
#include <caf/typed_actor.hpp>

#include <memory>

namespace troupe::actors {

/// Answers those who watch and steer a run over its control port: an observer of the run that keeps its status, and
/// asks the trainer what they ask. It waits for nothing and writes no file, so it answers while a disk does not. Owned
/// by the actor that writes the run's files, which also tells it what it records.
using control_desk =
    run_observer::extend<caf::result<void>(control_line), caf::result<void>(append_event), caf::result<void>(run_over)>;

struct control_desk_config {
  run_identification who;
  /// Outlives the desk.
  control_port* port = nullptr;
  caf::weak_actor_ptr trainer;
};

[[nodiscard]] control_desk spawn_control_desk(caf::actor_system& system, control_desk_config config);

} // namespace troupe::actors
