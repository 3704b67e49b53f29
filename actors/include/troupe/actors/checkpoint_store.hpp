#pragma once

#include <troupe/actors/checkpoint_holds.hpp>
#include <troupe/actors/handles.hpp>

#include <troupe/serialization/checkpoint/retention.hpp>

#include <caf/fwd.hpp>

#include <filesystem>
#include <functional>
#include <memory>

namespace troupe::actors {

struct checkpoint_store_config {
  run_id run;
  /// The directory that holds the run's checkpoints.
  std::filesystem::path directory;
  serialization::retention_policy keep = {};
  /// Called for every checkpoint before the workers get the outcome, in the store's thread.
  std::function<void(const checkpoint_outcome&)> on_outcome = {};
  /// Checkpoints that somebody reads; may be null.
  std::shared_ptr<const checkpoint_holds> holds = {};
};

/// Spawns the checkpoint store of one run, on its own thread because it blocks on the device.
[[nodiscard]] checkpoint_store spawn_checkpoint_store(caf::actor_system& system, checkpoint_store_config config);

} // namespace troupe::actors
