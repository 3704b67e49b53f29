#pragma once

#include <troupe/actors/handles.hpp>

#include <caf/fwd.hpp>

#include <memory>

namespace troupe::actors {

/// The part of a worker process that trains. The worker actor carries messages to it, from an actor's thread; each call
/// returns at once. Implemented by runtime/.
class training_host {
 public:
  virtual ~training_host() = default;

  virtual void begin(const begin_training& message) = 0;
  virtual void command(const control_command& message) = 0;
  virtual void abort(const abort_training& message) = 0;
  virtual void release() = 0;

  /// The training thread's state, for heartbeats. Does not wait for that thread.
  [[nodiscard]] virtual worker_beat beat() = 0;

  /// The same for people, with the call that it is in and the ranks that it waits for. Never waits for it either.
  [[nodiscard]] virtual std::string describe() = 0;
};

/// Spawns the actor of a worker process, which tells `node` several times a second that the process lives.
[[nodiscard]] worker_actor spawn_worker(caf::actor_system& system, node_actor node,
                                        std::shared_ptr<training_host> host);

} // namespace troupe::actors
