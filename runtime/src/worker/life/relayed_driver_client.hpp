#pragma once

#include "net/parts/part_stream.hpp"
#include "worker/life/driver_client.hpp"

#include <troupe/actors/driver_relay.hpp>
#include <troupe/collectives/unique_fd.hpp>
#include <troupe/types.hpp>

#include <caf/actor_system.hpp>

#include <memory>

namespace troupe::runtime {

/// A `driver_client` that asks the run's actors through the driver relay. `system` outlives it. `descriptors` comes
/// from the node's `descriptor_broker`; `secret` opens streams for checkpoint parts.
[[nodiscard]] std::unique_ptr<driver_client> make_relayed_driver_client(caf::actor_system& system,
                                                                        actors::driver_relay driver, worker_id worker,
                                                                        collectives::unique_fd descriptors,
                                                                        part_stream_secret secret);

} // namespace troupe::runtime
