#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace troupe {

/// Whether to resume from a checkpoint in the run's directory.
enum class resume_mode : std::uint8_t {
  /// Resume from the latest valid checkpoint if one exists, in the run's directory or at its mirror, otherwise start
  /// from the beginning.
  automatic = 1,
  /// Fail if the run's directory, or its mirror, already exists.
  never = 2,
  /// Fail if there is no checkpoint.
  required = 3,
  /// Start from the beginning. The existing directory is moved aside, to `name.1`, `name.2`, ..., and so is its mirror.
  restart = 4,
};

/// In what a resumed run may differ from its checkpoint. Steps, schedule and data order go on; the result is then that
/// of several programs, which it names.
struct allowed_changes {
  /// The build, as after a bug fix.
  bool program = false;
  /// `trainer_config::config`.
  bool configuration = false;
  /// The results of the workers' libraries, as after an update of the system.
  bool libraries = false;
};

/// How gradients are summed.
enum class reduction_mode : std::uint8_t {
  /// Over the canonical summation tree: the same bits for any number of workers.
  exact = 1,
  /// By the transport's own all-reduce: replicas agree with each other, and nothing more is promised.
  fast = 2,
};

/// The transport of gradients between workers. Gradients in GPU memory are copied through host memory, except with
/// `automatic` and `nccl`.
enum class transport_mode : std::uint8_t {
  /// Chosen by the location of the workers and their GPUs.
  automatic = 1,
  /// Shared memory: all workers on one node.
  shm = 2,
  /// TCP, also between workers on one host.
  tcp = 3,
  /// Shared memory within a host, TCP between hosts.
  hierarchical = 4,
  /// NCCL; every worker must have a GPU of its own. Data in host memory is carried as with `automatic`.
  nccl = 5,
};

/// The job of an engine, such as systemd, that a run's driver belongs to. `troupe submit` says it in the environment.
struct submitted_job {
  /// "systemd", "systemd-user", "slurm" or "kubernetes"; empty: nobody has submitted this driver.
  std::string engine = {};
  /// What the engine calls it: a unit, a job's number, a job's name.
  std::string id = {};
  /// Differs in each `troupe submit`. A driver that finds its own in the run's directory, or at its mirror, is one that
  /// the engine has started again: it goes on, whatever `run_config::resume` says.
  std::string submission = {};
  /// Differs each time that the engine starts the job; empty: unknown. What a job does twice by itself, such as to
  /// begin a run anew, it does twice.
  std::string start = {};

  bool operator==(const submitted_job&) const = default;
};

/// Which run this is, and where its files are.
struct run_config {
  /// The run's directory is `storage_path / name`. Letters, digits, '.', '_' and '-'; not "latest". A run without a
  /// name begins in a fresh directory, whose name is made of the program's and the time.
  std::string name = {};
  /// `storage_path / "latest"` is a link to the directory of the run that was begun last.
  std::filesystem::path storage_path = "runs";
  resume_mode resume = resume_mode::automatic;
  /// How long a driver waits for the directory while another has it, such as one on a host that has died: a server of
  /// NFS keeps that one's lock for up to a lease. 0: it fails at once.
  std::chrono::milliseconds lock_wait{0};
  submitted_job job = {};
  allowed_changes allow_changed = {};
  /// The number of the last step, counted over the whole life of the run; 0 leaves it to the training function. May
  /// change when the run is resumed.
  std::uint64_t steps = 0;
  /// The run stops when it has done this step, as by `trainer::stop`, and at once if it had done it before; 0: it does
  /// not. Unlike `steps`, nothing that the training function can see depends on it.
  std::uint64_t stop_after = 0;
  std::uint64_t seed = 1;
  reduction_mode reduction = reduction_mode::exact;
  transport_mode transport = transport_mode::automatic;
  /// Allows resuming from a checkpoint of a different processor type, and training on mixed processor types. The
  /// result is then marked as not exact.
  bool allow_mixed_hosts = false;
  /// Writes `ledger.jsonl`: which process computed which shards of which step, and digests of the reduced gradient and
  /// of a slice of the state, for `troupe replay` and `troupe bisect`. A gradient in GPU memory is copied to the host
  /// for that.
  bool keep_ledger = false;
  /// Digests the tracked state around the body of every step, instead of every 1,024th at least and a few of the first,
  /// to find a body that writes tracked state before `all_reduce`.
  bool check_every_step = false;
  /// In every n-th step (0: never) a second worker recomputes one shard, and the two results are compared bit by bit;
  /// shards and workers rotate. A difference ends the run with `errc::mismatch`, naming tensor, ranks, shard and step.
  /// Results do not change. Such a step costs the time of one more shard, the overlap of reduction and backward, and
  /// memory for at most two gradients. A single worker computes the shard twice itself.
  std::uint64_t verify_determinism = 0;
  /// The worker that starts with this rank waits for a debugger before it joins, and prints how to attach one.
  /// `start_timeout` does not count then.
  std::optional<std::uint32_t> debug_rank = {};
  /// Deadline for all worker processes to start and join.
  std::chrono::milliseconds start_timeout{30'000};
  /// Deadline of one collective operation. If `failure.hang` is `replace`, ranks wait for a slow rank until it is
  /// replaced; if all ranks wait for each other this long, the group is re-formed once, and the run ends if it happens
  /// again. If it is `report`, a rank that waits this long ends the run.
  std::chrono::milliseconds collective_timeout{300'000};
  /// How long the run may take from `fit()` on; 0: as long as it likes. When the time is over it takes a checkpoint and
  /// stops, as by `trainer::stop`, and the result's reason has `errc::timed_out`. Each attempt has the whole time.
  std::chrono::milliseconds time_limit{0};
  /// A worker's log of this size is renamed to `worker-N.log.1`, in place of an older one, and begun anew. 0: it grows
  /// without limit.
  std::uint64_t worker_log_bytes = std::uint64_t{64} << 20;
};

} // namespace troupe
