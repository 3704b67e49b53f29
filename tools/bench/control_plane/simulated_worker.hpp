#pragma once

#include "events.hpp"

#include <troupe/actors/handles.hpp>
#include <troupe/actors/process_launcher.hpp>

#include <caf/fwd.hpp>

#include <memory>
#include <string>

namespace troupe::bench {

/// The common data of the workers of a host.
struct host_facts {
  actors::node_actor node;
  std::string host;
  std::string build_id;
  /// JSON text of the numerics fingerprint.
  std::string numerics;
  event_writer events;
};

/// Spawns a worker as the other actors see it: it joins by its node, forms each generation, agrees on a plan in the
/// first, commits one step in each, and reports when its generation is aborted. It writes `formed` and `agreed`.
[[nodiscard]] caf::actor spawn_simulated_worker(caf::actor_system& system, std::shared_ptr<const host_facts> facts,
                                                actors::launch_request request);

} // namespace troupe::bench
