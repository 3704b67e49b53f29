#pragma once

#include "remote/replica_messages.hpp"

#include <troupe/serving/remote_replicas.hpp>

#include <functional>

namespace troupe::serving {

/// What the process of a replica does: keeps a connection waiting at the server, for the next model, and a thread for
/// each model that it has loaded. Returns soon after `is_over`, which is called several times a second, and ends the
/// connections.
void run_replica(const replica_settings& settings, const load_replica& load, const std::function<bool()>& is_over);

} // namespace troupe::serving
