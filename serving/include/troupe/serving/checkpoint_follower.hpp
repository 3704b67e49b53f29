#pragma once

#include <troupe/actors/handles.hpp>
#include <troupe/serving/server.hpp>

#include <caf/fwd.hpp>

#include <memory>

namespace troupe::serving {

/// Spawns an actor that observes a run, beside its trainer: once a checkpoint is saved, the server looks for it,
/// without waiting for its poll. The actor keeps the server until it is ended by an exit message.
///
///     auto follower = troupe::serving::spawn_checkpoint_follower(system, server);
///     self->send(trainer, follower);
[[nodiscard]] actors::run_observer spawn_checkpoint_follower(caf::actor_system& system, std::shared_ptr<server> target);

} // namespace troupe::serving
