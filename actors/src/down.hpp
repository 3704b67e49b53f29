#pragma once

#include <caf/abstract_actor.hpp>
#include <caf/actor_cast.hpp>
#include <caf/error.hpp>

#include <utility>

namespace troupe::actors {

/// Calls `react` once when `whom` is gone, in whatever thread notices: let it send a message, nothing more. One form
/// for all versions of CAF (the down handlers of 0.18 are gone after 1.1).
template <class Handle, class Reaction>
void when_down(const Handle& whom, Reaction react) {
  caf::actor_cast<caf::abstract_actor*>(whom)->attach_functor(
      [react = std::move(react)](const caf::error&) mutable { react(); });
}

} // namespace troupe::actors
