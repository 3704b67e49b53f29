#pragma once

#include "local_messages.hpp"
#include <troupe/actors/trainer.hpp>
#include <troupe/config.hpp>

#include <caf/actor_control_block.hpp>
#include <caf/fwd.hpp>
#include <caf/typed_actor.hpp>

#include <stop_token>
#include <string>

namespace troupe::actors {

/// The files of one run: its directory, its checkpoint store, and the receiver of streamed checkpoint parts. The only
/// part of a run's driver that may block on a device, a name server or a terminal. Owned by the trainer. See
/// local_messages.hpp for the promise of each message.
using run_files =
    caf::typed_actor<caf::result<claimed_directory>(claim_directory), caf::result<starting_state>(find_state),
                     caf::result<directory_taken_over>(take_over_directory), caf::result<void>(release_directory),
                     caf::result<void>(write_journal), caf::result<std::string>(part_address_request),
                     caf::result<void>(append_metrics), caf::result<void>(append_output),
                     caf::result<void>(append_event), caf::result<finished_run>(finish_run)>;

struct run_files_config {
  run_id run;
  /// The name of the training function.
  std::string function;
  trainer_config config;
  trainer_services services;
  /// Workers that stream parts prove that they know it.
  std::string secret;
  /// Gets a `checkpoint_outcome` for every checkpoint.
  caf::weak_actor_ptr trainer;
  /// Ends waiting for a mirror: when somebody is in a hurry, or what is waited for is not wanted any more.
  std::stop_token hurry;
};

/// Spawns it on a thread of its own.
[[nodiscard]] run_files spawn_run_files(caf::actor_system& system, run_files_config config);

} // namespace troupe::actors
