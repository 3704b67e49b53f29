#pragma once

#include <troupe/checkpoint_sync.hpp>
#include <troupe/inspect.hpp>
#include <troupe/load_options.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/port_range.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The driver's messages to a worker before the worker enters the training function.
namespace troupe {

/// The transport of gradients in GPU memory.
enum class gpu_gradients : std::uint8_t {
  /// NCCL if each rank has its own GPU and all have the same version of the library; otherwise host memory.
  automatic = 0,
  /// Host memory and the generation's transport, because the configuration names it.
  by_host = 1,
  /// NCCL or an error, because the configuration names it.
  by_nccl = 2,
};

TROUPE_INSPECT_ENUM(gpu_gradients, automatic, by_nccl)

/// The run's settings, the same for all its workers.
struct run_settings {
  /// The name under which the program registered its training function.
  std::string function;
  std::string name;
  /// Absolute path of the run's directory, as the driver sees it.
  std::string directory;
  std::uint64_t seed = 0;
  /// V, the logical shards of a step.
  std::uint32_t shards = 0;
  /// JSON text of the user's configuration, and of the user's options, which do not affect the result.
  std::string configuration;
  std::string options;
  /// The last step; 0 leaves it to the training function.
  std::uint64_t steps = 0;
  /// The training function is stopped after this step; 0: it is not.
  std::uint64_t stop_after = 0;
  /// Use the transport's own all-reduce instead of the canonical tree.
  bool fast_reduction = false;
  bool keep_ledger = false;
  /// Digest the tracked state around the body of every step, not only of the first.
  bool check_every_step = false;
  /// Interval in steps at which another worker computes one shard again and the results are compared; 0 for never.
  std::uint64_t verify_determinism = 0;
  /// Limit of one collective operation, in milliseconds.
  std::uint64_t collective_timeout_ms = 0;
  /// The driver detects hung ranks and ends the calls that wait for them, so the gradients' group has no deadline.
  bool driver_ends_waits = false;
  /// A worker that does not answer another for this long over TCP cannot be reached by it, in milliseconds.
  std::uint64_t answer_timeout_ms = 0;
  /// Traffic between workers over TCP is encrypted.
  bool encrypt_data_plane = true;
  /// A step with a metric that is not finite ends the run.
  bool end_on_not_finite = false;
  /// Where workers listen for each other; none: the system chooses.
  std::optional<port_range> ports;

  bool operator==(const run_settings&) const = default;
};

TROUPE_INSPECT(run_settings, function, name, directory, seed, shards, configuration, options, steps, stop_after,
               fast_reduction, keep_ledger, check_every_step, verify_determinism, collective_timeout_ms,
               driver_ends_waits, answer_timeout_ms, encrypt_data_plane, end_on_not_finite, ports)

/// The state that this start of the run continues.
struct resume_settings {
  /// Directory of the checkpoint to restore; empty for a fresh start, and for a joiner.
  std::string checkpoint;
  /// Whether the checkpoint's step count continues; false if only the state is taken, from another run's checkpoint.
  bool restore_step = false;
  step_id step;
  /// How the tensors of another run's checkpoint map to this run's.
  load_options load;
  /// The run was finished by a decision of its own in that step (`basic_step::finish`): no further step is done.
  bool is_finished = false;
  /// How long the run has been training before the worker begins, in microseconds.
  std::uint64_t run_time_us = 0;

  bool operator==(const resume_settings&) const = default;
};

TROUPE_INSPECT(resume_settings, checkpoint, restore_step, step, load, is_finished, run_time_us)

/// When checkpoints are taken, and how their parts travel.
struct checkpoint_settings {
  /// Interval in steps; 0 takes only the last checkpoint.
  std::uint64_t every_steps = 0;
  /// How many may be written while training continues; with 0 training waits for each.
  std::uint32_t max_in_flight = 1;
  checkpoint_sync sync = checkpoint_sync::automatic;
  /// Do not write chunks again that have not changed since the last checkpoint.
  bool reuse_unchanged = true;
  /// A checkpoint that is due while `max_in_flight` are being written is skipped; otherwise training waits for them.
  bool may_skip = true;

  bool operator==(const checkpoint_settings&) const = default;
};

TROUPE_INSPECT(checkpoint_settings, every_steps, max_in_flight, sync, reuse_unchanged, may_skip)

/// The devices on which the worker computes.
struct device_settings {
  /// The number of this worker's GPUs, or its fraction of one; 0 computes on the CPU.
  double gpus = 0;
  gpu_gradients gradients = gpu_gradients::automatic;

  bool operator==(const device_settings&) const = default;
};

TROUPE_INSPECT(device_settings, gpus, gradients)

/// Everything a worker needs to enter the training function. Sent once all workers are ready, and to a joiner once it
/// is ready.
struct begin_training {
  run_id run;
  worker_id worker;
  /// A joiner's place has no generation: the joiner runs to its first loop alone, and asks for a place there.
  group_place place;
  /// For a joiner: the results of the members' evaluations before each loop, in order. The joiner skips its loops
  /// before the last of these.
  std::vector<std::vector<std::vector<double>>> earlier_evaluations;
  run_settings settings;
  resume_settings resume;
  checkpoint_settings checkpoints;
  device_settings device;

  bool operator==(const begin_training&) const = default;
};

TROUPE_INSPECT(begin_training, run, worker, place, earlier_evaluations, settings, resume, checkpoints, device)

} // namespace troupe
