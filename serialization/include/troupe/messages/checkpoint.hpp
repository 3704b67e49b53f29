#pragma once

#include <troupe/error.hpp>
#include <troupe/inspect.hpp>
#include <troupe/metrics.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/tensor.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// The messages of workers and the driver to the checkpoint store.
namespace troupe {

/// The common content of all manifests of a run. Sent by the trainer when the workers' plans are accepted.
struct checkpoint_metadata {
  run_id run;
  std::uint64_t seed = 0;
  std::uint32_t shards = 0;
  std::uint64_t batch_samples = 0;
  std::uint32_t tree_version = 0;
  std::string build_id;
  std::string configuration;
  std::string data_fingerprint;
  std::string numerics;
  /// As in the manifest.
  std::string earlier_programs;

  bool operator==(const checkpoint_metadata&) const = default;
};

TROUPE_INSPECT(checkpoint_metadata, run, seed, shards, batch_samples, tree_version, build_id, configuration,
               data_fingerprint, numerics, earlier_programs)

/// One worker's part of a checkpoint is durable, or could not be written. Sent by every rank. Answered to all ranks by
/// `checkpoint_outcome` once all parts have arrived and the checkpoint is committed or has failed.
struct checkpoint_part {
  run_id run;
  generation_id generation;
  step_id step;
  std::uint32_t attempt = 0;
  rank_id rank;
  std::uint32_t world_size = 0;
  serialization::part_report report;
  /// Why the part could not be written; code `none` if it was.
  error reason;
  /// The tracked tensors in the order of tracking; the same on all ranks.
  std::vector<tensor_spec> tensors;
  metric_map metrics;
  std::string values_json;
  /// The run is finished with this step, by a decision of its own.
  bool finishes_run = false;

  bool operator==(const checkpoint_part&) const = default;
};

TROUPE_INSPECT(checkpoint_part, run, generation, step, attempt, rank, world_size, report, reason, tensors, metrics,
               values_json, finishes_run)

/// The outcome of a checkpoint. A failure does not end the training, and older checkpoints stay valid.
struct checkpoint_outcome {
  step_id step;
  /// Its directory; empty if it failed.
  std::string path;
  error reason;
  /// Of its tensors.
  std::uint64_t size_bytes = 0;
  /// From the arrival of the first part until it was durable, or had failed.
  double seconds = 0;

  bool operator==(const checkpoint_outcome&) const = default;
};

TROUPE_INSPECT(checkpoint_outcome, step, path, reason, size_bytes, seconds)

/// Asks whether a worker and the store see the same directory. Sent by a worker after it has created a file there.
/// Answered by `storage_view`.
struct storage_probe {
  run_id run;
  worker_id worker;
  /// The worker's file among the run's checkpoints, and its content.
  std::string file;
  std::string nonce;

  bool operator==(const storage_probe&) const = default;
};

TROUPE_INSPECT(storage_probe, run, worker, file, nonce)

/// Whether the store has seen the worker's file, and the store's own file for the worker to check.
struct storage_view {
  bool seen = false;
  std::string file;
  std::string nonce;

  bool operator==(const storage_view&) const = default;
};

TROUPE_INSPECT(storage_view, seen, file, nonce)

} // namespace troupe
