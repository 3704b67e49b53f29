#pragma once

#include <troupe/actors/handles.hpp>

#include <caf/fwd.hpp>
#include <caf/typed_actor.hpp>

namespace troupe::actors {

/// Carries the requests of a worker's threads to its driver across reconnects: a request is repeated to each new set of
/// handles until it is answered. The promises are those of `run_control`, `collectives_actor` and `checkpoint_store`.
/// In the worker's process.
using driver_relay = driver_follower::extend<
    // To be sent once.
    caf::result<void>(worker_ready, worker_actor), caf::result<plan_accepted>(run_plan),
    caf::result<next_generation>(regroup_report), caf::result<void>(caught_up), caf::result<void>(metrics_batch),
    caf::result<void>(worker_finished), caf::result<exchange_result>(exchange_request),
    caf::result<void>(exchange_ended), caf::result<exit_granted>(exit_request), caf::result<void>(exit_withdrawn),
    caf::result<checkpoint_outcome>(checkpoint_part), caf::result<storage_view>(storage_probe)>;

/// Forwards nothing before it has the first handles.
[[nodiscard]] driver_relay spawn_driver_relay(caf::actor_system& system);

} // namespace troupe::actors
