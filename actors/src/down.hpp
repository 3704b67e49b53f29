#pragma once

#include <caf/abstract_actor.hpp>
#include <caf/actor_cast.hpp>
#include <caf/actor_system.hpp>
#include <caf/error.hpp>
#include <caf/exit_reason.hpp>
#include <caf/scoped_actor.hpp>

#include <cstdint>
#include <utility>

namespace troupe::actors {

/// Why an actor is gone.
enum class down_cause : std::uint8_t {
  /// It has ended, and says so.
  ended,
  /// The connection to its process is lost. It may live.
  disconnected,
};

/// Calls `react` with a `down_cause` once when `whom` is gone, in any thread: it should only send a message. Works with
/// all versions of CAF (the down handlers of 0.18 are gone after 1.1).
template <class Handle, class Reaction>
void when_down(const Handle& whom, Reaction react) {
  caf::actor_cast<caf::abstract_actor*>(whom)->attach_functor(
      [react = std::move(react)](const caf::error& reason) mutable {
        react(reason == caf::exit_reason::remote_link_unreachable ? down_cause::disconnected : down_cause::ended);
      });
}

/// Ends an actor that the caller owns, and returns once it has ended and released its resources. Blocks, so call it
/// only from an actor with its own thread, at its end. No effect for an empty handle.
template <class Handle>
void end_and_await(caf::actor_system& system, const Handle& whom) {
  if (!whom)
    return;
  auto waiter = caf::scoped_actor{system};
  waiter->send_exit(whom, caf::exit_reason::user_shutdown);
  waiter->wait_for(whom);
}

} // namespace troupe::actors
