#pragma once

#include <troupe/checkpoint_sync.hpp>
#include <troupe/inspect.hpp>
#include <troupe/load_options.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// What a worker is told before it enters the training function. From the driver.
namespace troupe {

/// What carries gradients that lie in the memory of GPUs.
enum class gpu_gradients : std::uint8_t {
  /// NCCL where each rank has a GPU of its own and all have the library in one version; else the hosts' memory.
  automatic = 0,
  /// The hosts' memory, and the generation's transport: that was asked for by name.
  by_host = 1,
  /// NCCL, or nothing: it was asked for by name.
  by_nccl = 2,
};

TROUPE_INSPECT_ENUM(gpu_gradients, automatic, by_nccl)

/// What the run is, the same for all its workers.
struct run_settings {
  /// The name under which the program registered its training function.
  std::string function;
  std::string name;
  /// Absolute path of the run's directory, as the driver sees it.
  std::string directory;
  std::uint64_t seed = 0;
  /// V, the logical shards of a step.
  std::uint32_t shards = 0;
  /// JSON text of the user's configuration, and of the user's options, which do not decide the result.
  std::string configuration;
  std::string options;
  /// The last step; 0 leaves it to the training function.
  std::uint64_t steps = 0;
  /// Sums are handed to the transport's own all-reduce instead of the canonical tree.
  bool fast_reduction = false;
  bool keep_ledger = false;
  /// Digests the tracked state around the body of every step, not only of the first.
  bool check_every_step = false;
  /// In every so many steps one shard is computed a second time, by another worker, and compared; 0: in none.
  std::uint64_t verify_determinism = 0;
  /// Limit of one collective operation, in milliseconds.
  std::uint64_t collective_timeout_ms = 0;
  /// The driver finds hung ranks and ends what waits for them: the gradients' group waits without a limit.
  bool driver_ends_waits = false;

  bool operator==(const run_settings&) const = default;
};

TROUPE_INSPECT(run_settings, function, name, directory, seed, shards, configuration, options, steps, fast_reduction,
               keep_ledger, check_every_step, verify_determinism, collective_timeout_ms, driver_ends_waits)

/// Where this start of the run goes on from.
struct resume_settings {
  /// Directory of the checkpoint to restore; empty for a fresh start, and for a joiner.
  std::string checkpoint;
  /// Whether the checkpoint is this run's own (its step count goes on), or another's that lends its state only.
  bool restore_step = false;
  step_id step;
  /// How the tensors of another run's checkpoint become this run's.
  load_options load;

  bool operator==(const resume_settings&) const = default;
};

TROUPE_INSPECT(resume_settings, checkpoint, restore_step, step, load)

/// When checkpoints are taken, and how their parts travel.
struct checkpoint_settings {
  /// A checkpoint after every so many steps; 0 for none but the last.
  std::uint64_t every_steps = 0;
  /// How many may be written while training goes on; 0: it waits for each.
  std::uint32_t max_in_flight = 1;
  checkpoint_sync sync = checkpoint_sync::automatic;
  /// Chunks that have not changed since the last checkpoint are not written again.
  bool reuse_unchanged = true;
  /// `HOST:PORT` at which the driver accepts streamed parts; empty for nowhere.
  std::string part_stream;

  bool operator==(const checkpoint_settings&) const = default;
};

TROUPE_INSPECT(checkpoint_settings, every_steps, max_in_flight, sync, reuse_unchanged, part_stream)

/// What the worker computes on.
struct device_settings {
  /// The GPUs that this worker has, or the fraction of one; 0: it computes on the CPU.
  double gpus = 0;
  gpu_gradients gradients = gpu_gradients::automatic;

  bool operator==(const device_settings&) const = default;
};

TROUPE_INSPECT(device_settings, gpus, gradients)

/// Everything a worker needs to enter the training function. Sent once all workers are ready, and to a joiner once it
/// is ready itself.
struct begin_training {
  run_id run;
  worker_id worker;
  /// Without a generation for a joiner: it runs up to its first loop by itself, and asks for a place there.
  group_place place;
  /// For a joiner: the results of the evaluations that the others did before each loop, in order. Its own loops before
  /// the last of these are skipped.
  std::vector<std::vector<std::vector<double>>> earlier_evaluations;
  run_settings settings;
  resume_settings resume;
  checkpoint_settings checkpoints;
  device_settings device;

  bool operator==(const begin_training&) const = default;
};

TROUPE_INSPECT(begin_training, run, worker, place, earlier_evaluations, settings, resume, checkpoints, device)

} // namespace troupe
