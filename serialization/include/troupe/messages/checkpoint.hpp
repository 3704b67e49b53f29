#pragma once

#include <troupe/error.hpp>
#include <troupe/metrics.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/tensor.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// What workers and the driver say to the checkpoint store.
namespace troupe {

/// What every manifest of a run says alike. Sent by the trainer when the workers' plans are accepted.
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

  bool operator==(const checkpoint_metadata&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, checkpoint_metadata& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("seed", x.seed), f.field("shards", x.shards),
                            f.field("batch_samples", x.batch_samples), f.field("tree_version", x.tree_version),
                            f.field("build_id", x.build_id), f.field("configuration", x.configuration),
                            f.field("data_fingerprint", x.data_fingerprint), f.field("numerics", x.numerics));
}

/// One worker's part of a checkpoint is on the device, or could not be written. Sent by every rank; answered to all of
/// them by `checkpoint_outcome` once the last has spoken and the checkpoint is committed, or given up.
struct checkpoint_part {
  run_id run;
  generation_id generation;
  step_id step;
  std::uint32_t attempt = 0;
  rank_id rank;
  std::uint32_t world_size = 0;
  serialization::part_report report;
  /// Why the part could not be written; code `none` when it was.
  error reason;
  /// What is tracked, in the order of tracking; the same on all ranks.
  std::vector<tensor_spec> tensors;
  metric_map metrics;
  std::string values_json;

  bool operator==(const checkpoint_part&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, checkpoint_part& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation), f.field("step", x.step),
                            f.field("attempt", x.attempt), f.field("rank", x.rank), f.field("world_size", x.world_size),
                            f.field("report", x.report), f.field("reason", x.reason), f.field("tensors", x.tensors),
                            f.field("metrics", x.metrics), f.field("values_json", x.values_json));
}

/// What became of a checkpoint. A failure does not end the training: the older checkpoints stand.
struct checkpoint_outcome {
  step_id step;
  /// Its directory; empty when it was given up.
  std::string path;
  error reason;

  bool operator==(const checkpoint_outcome&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, checkpoint_outcome& x) {
  return f.object(x).fields(f.field("step", x.step), f.field("path", x.path), f.field("reason", x.reason));
}

/// Asks whether a worker and the store see the same directory. Sent by a worker that has just made a file there;
/// answered by `storage_view`.
struct storage_probe {
  run_id run;
  worker_id worker;
  /// The worker's file among the run's checkpoints, and what stands in it.
  std::string file;
  std::string nonce;

  bool operator==(const storage_probe&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, storage_probe& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("file", x.file),
                            f.field("nonce", x.nonce));
}

/// What the store has seen of a worker's file, and a file of its own for the worker to look at.
struct storage_view {
  bool seen = false;
  std::string file;
  std::string nonce;

  bool operator==(const storage_view&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, storage_view& x) {
  return f.object(x).fields(f.field("seen", x.seen), f.field("file", x.file), f.field("nonce", x.nonce));
}

} // namespace troupe
