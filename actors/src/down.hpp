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

/// Why nothing comes from an actor any more.
enum class down_cause : std::uint8_t {
  /// It has ended, and says so.
  ended,
  /// The connection to its process is lost. It may live.
  disconnected,
};

/// Calls `react` with a `down_cause` once when `whom` is gone, in whatever thread notices: let it send a message,
/// nothing more. One form for all versions of CAF (the down handlers of 0.18 are gone after 1.1).
template <class Handle, class Reaction>
void when_down(const Handle& whom, Reaction react) {
  caf::actor_cast<caf::abstract_actor*>(whom)->attach_functor(
      [react = std::move(react)](const caf::error& reason) mutable {
        react(reason == caf::exit_reason::remote_link_unreachable ? down_cause::disconnected : down_cause::ended);
      });
}

/// Ends an actor that the caller owns, and returns once it has ended: what it owned is free then. Waits, so it is for
/// the end of an actor with a thread of its own. Nothing happens for an empty handle.
template <class Handle>
void end_and_await(caf::actor_system& system, const Handle& whom) {
  if (!whom)
    return;
  auto waiter = caf::scoped_actor{system};
  waiter->send_exit(whom, caf::exit_reason::user_shutdown);
  waiter->wait_for(whom);
}

} // namespace troupe::actors
