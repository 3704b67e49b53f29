#pragma once

#include <troupe/actors/handles.hpp>

#include <troupe/serialization/checkpoint/retention.hpp>

#include <caf/fwd.hpp>

#include <filesystem>
#include <functional>

namespace troupe::actors {

/// What a checkpoint store is told at its start.
struct checkpoint_store_config {
  run_id run;
  /// The directory that holds the run's checkpoints.
  std::filesystem::path directory;
  serialization::retention_policy keep = {};
  /// Hears of every checkpoint before the workers do, in the store's thread.
  std::function<void(const checkpoint_outcome&)> on_outcome = {};
};

/// Spawns the checkpoint store of one run, on a thread of its own: it waits for the device.
[[nodiscard]] checkpoint_store spawn_checkpoint_store(caf::actor_system& system, checkpoint_store_config config);

} // namespace troupe::actors
