#pragma once

#include <troupe/checkpoint_sync.hpp>
#include <troupe/error.hpp>
#include <troupe/load_options.hpp>
#include <troupe/port_range.hpp>
#include <troupe/resources.hpp>
#include <troupe/serialization/checkpoint/retention.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

/// A run's configuration: plain aggregates, validated as a whole before anything starts.
namespace troupe {

/// How workers are spread over nodes.
enum class placement_strategy : std::uint8_t {
  /// As few nodes as possible, in the order in which the nodes are named.
  pack = 1,
  /// Evenly over all nodes.
  spread = 2,
  /// All on one node, or not at all.
  strict_pack = 3,
  /// Each on a node of its own, or not at all.
  strict_spread = 4,
};

/// How many workers a run has. A single number: the run starts with that many; lost workers are replaced while the
/// others continue, down to one. A range: the run starts once there is capacity for `min`, accepts joiners up to `max`,
/// and waits while it has fewer than `min`. 0: the training function runs in the driver's process, as one worker with
/// the same interface and the same bits, for debuggers, profilers and sanitizers.
struct worker_range {
  std::uint32_t min = 1;
  std::uint32_t max = 1;

  constexpr worker_range() = default;
  // Implicit, so that a single number is a range.
  constexpr worker_range(std::uint32_t number) : min(number), max(number) {} // NOLINT(google-explicit-constructor)
  constexpr worker_range(std::uint32_t least, std::uint32_t most) : min(least), max(most) {}

  [[nodiscard]] constexpr bool is_elastic() const noexcept { return min != max; }
  bool operator==(const worker_range&) const = default;
};

/// Reads "4", "2-8" or "2:8" for a range, or "0".
[[nodiscard]] expected<worker_range> parse_worker_range(const std::string& text);
[[nodiscard]] std::string to_string(worker_range range);

/// How many workers, and what each of them takes.
struct scaling_config {
  worker_range num_workers = 1;
  /// V: the number of logical shards into which every step's batch is cut. It belongs to the program, like the batch
  /// size: the result depends on it. At least the number of workers.
  std::uint32_t shards = 8;
  /// Each worker computes on a GPU of its own, or on the number or fraction of GPUs in `resources_per_worker`.
  bool use_gpu = false;
  /// The resources that each worker leases: no other run gets them. With 0 CPUs (the default), workers share the CPUs.
  /// A GPU fraction below one shares a GPU among workers of this run: 0.25 puts four on each. Larger numbers must be
  /// whole.
  resources resources_per_worker = {};
  placement_strategy placement = placement_strategy::pack;
  /// Only nodes with these labels (`caf-node --label NAME=VALUE`) get workers.
  std::map<std::string, std::string> node_labels = {};
  /// How long a run with a range waits at its start for more capacity than `min` needs.
  std::chrono::milliseconds scale_up_wait{2'000};
  /// How long a run waits for the capacity for `min` workers, at its start and later, before it fails.
  std::chrono::milliseconds wait_for_workers{600'000};
  /// How long a run waits at its start for resources that other runs have leased, before it fails. The run that has
  /// waited longest gets them first.
  std::chrono::milliseconds wait_for_resources{0};
};

/// `resources_per_worker`, with one GPU where `use_gpu` is set without a number.
[[nodiscard]] resources resources_of_worker(const scaling_config& scaling);

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

/// A second place for a run's checkpoints and results, which are copied there behind training's back.
struct mirror_config {
  /// A directory on another device or host, or `rclone:REMOTE:PATH` for what rclone reaches, with rclone's own
  /// configuration. The run's copy is `to / name`, laid out like the run's directory. Empty: there is no mirror.
  std::string to = {};
  /// The number of latest checkpoints to keep there; at least 1. The best by `checkpoint_config::score_attribute` are
  /// kept as well.
  std::uint32_t num_to_keep = 2;
  /// How long a run that ends waits until the mirror has its last checkpoint and its result.
  std::chrono::milliseconds final_wait{300'000};
  /// The program: a name in PATH, or a path.
  std::string rclone = "rclone";
};

/// When to take checkpoints, and which to keep. One is always taken after the last step, and when the run is stopped.
struct checkpoint_config {
  /// Interval in steps; 0 for none in between.
  std::uint64_t every_steps = 0;
  /// The number of latest checkpoints to keep; at least 1.
  std::uint32_t num_to_keep = 2;
  /// A metric of `step.report`. The checkpoint with its best value in rank 0's latest report is also kept, at any age.
  /// Empty: no checkpoint is kept for its metric. A checkpoint without the metric is never the best.
  std::string score_attribute = {};
  score_mode score_order = score_mode::max;
  /// The number of best checkpoints to keep besides the latest; at least 1. Without a `score_attribute` there are none.
  std::uint32_t num_best_to_keep = 1;
  /// Training stops only to copy the state; up to this many checkpoints are written in the background. A checkpoint
  /// that comes due while this many are being written is skipped with a warning; with a `score_attribute` it may be the
  /// best, so training waits until it can be taken. 0: training waits for each one.
  std::uint32_t max_in_flight = 1;
  /// How the parts reach the driver's host.
  checkpoint_sync sync = checkpoint_sync::automatic;
  /// Does not write unchanged tensors (frozen layers, large tables) again: a chunk of 1 MiB or more that equals the one
  /// in the previous checkpoint gets a file of its own, and the next checkpoints hard-link it. The file is read back
  /// and compared each time, and written again every 8th time. A checkpoint's directory stays complete by itself.
  /// Everything is written on file systems without hard links, and where parts are streamed.
  bool reuse_unchanged = true;
  mirror_config mirror = {};
};

/// The reaction to a worker that hangs while its process lives.
enum class hang_mode : std::uint8_t {
  /// Only report it.
  report = 1,
  /// Report it, and replace the worker after `failure_config::replace_after`.
  replace = 2,
};

/// The reaction to a loss, or another metric of a step, that is NaN or infinite.
enum class not_finite_mode : std::uint8_t {
  /// Warn, with step and rank.
  warn = 1,
  /// Warn, and end the run before the step is applied.
  end_run = 2,
};

/// The reaction to a worker that a debugger holds at a breakpoint.
enum class debugger_mode : std::uint8_t {
  /// The others wait for it, however long it takes.
  wait = 1,
  /// It is treated as a frozen one: it is killed and replaced as soon as others have the run's state.
  replace = 2,
};

/// How failures are detected, and how many a run tolerates.
struct failure_config {
  /// More failures in a row than this, with no new step between them, end the run; 0 ends it at the first. Losses that
  /// break the same group count once, such as a host with all its workers.
  std::uint32_t max_failures = 100;
  /// Starts a new worker for each lost one, if there is capacity.
  bool replace_lost = true;
  /// A worker or a node that is silent for this long is given up if workers elsewhere have the run's state; if not, the
  /// run waits for it. A worker that is given up is killed. At least 500 ms.
  std::chrono::milliseconds heartbeat_timeout{1'200};
  /// How long a run waits for silent nodes or workers that alone have its state. After that it starts again from its
  /// latest checkpoint.
  std::chrono::milliseconds unreachable_after{300'000};
  /// How long workers continue when their node has lost its connection to the driver. 0: they end at once.
  std::chrono::milliseconds driver_grace{60'000};
  debugger_mode debugger = debugger_mode::wait;
  not_finite_mode not_finite = not_finite_mode::warn;
  hang_mode hang = hang_mode::replace;
  /// A rank whose training thread makes no progress for this long is reported. `train_context::heartbeat` counts as
  /// progress, also before the first loop.
  std::chrono::milliseconds report_after{30'000};
  std::chrono::milliseconds replace_after{600'000};
  /// A tracked state larger than this is transferred to a joiner while the others keep training; the joiner then
  /// applies what they have reduced meanwhile. For a smaller state the others wait.
  std::uint64_t background_transfer_above_bytes = std::uint64_t{16} << 20;
};

/// Where a driver asks which nodes it may use: when it begins, and every few seconds after that. Nodes that come get
/// workers; nodes that do not answer are passed over, and tried again; a node that three answers in a row do not name
/// is left, its workers between two steps. An answer that cannot be had, or names no node, changes nothing.
struct node_source {
  enum class kind : std::uint8_t {
    none,
    /// A file, as `parse_hosts` reads it.
    hosts_file,
    /// A name: the nodes are the hosts and ports of its SRV records; with `:PORT` behind it, the addresses that it has,
    /// with this port.
    dns_name,
    /// A program, which prints the lines of a host file within 10 seconds.
    script,
  };
  kind what = kind::none;
  std::string where = {};

  [[nodiscard]] bool is_set() const noexcept { return what != kind::none; }
  bool operator==(const node_source&) const = default;
};

/// On which nodes to run.
struct cluster_config {
  /// `HOST:PORT` of each caf-node. The run needs them all. Empty: the nodes are those of `discover`, or the driver
  /// hosts a node itself and the workers run on this machine.
  std::vector<std::string> nodes;
  /// Where the driver asks which nodes there are, instead of `nodes`.
  node_source discover = {};
  /// Connects without TLS. Anyone who reaches a port can then run code as its owner.
  bool insecure = false;
  /// Directory of the keys; empty: `$TROUPE_KEYS`, else `~/.config/troupe/keys`.
  std::filesystem::path keys;
  /// The network between the hosts is private, or a tunnel: saves the time that encrypting gradients takes, and lets
  /// NCCL, which sends clear text, carry them. Workers authenticate each other in any case.
  bool trusted_network = false;
  /// Everything that listens during a run takes its port from these, on every host: a firewall needs to open no more.
  /// Two for each worker of a host, and one more on the driver's. None: the system chooses.
  std::optional<port_range> ports;
  /// Deadline for connecting to a node.
  std::chrono::milliseconds connect_timeout{3'000};

  /// Whether workers run on this machine alone, on a node that the driver hosts.
  [[nodiscard]] bool is_embedded() const noexcept { return nodes.empty() && !discover.is_set(); }
};

/// Where a run's metrics go, besides the files in its directory. None of it takes time from a step, and none of it can
/// fail a run once that has begun.
struct monitoring_config {
  /// Writes TensorBoard's event files into the run's directory, in `tensorboard/`.
  bool tensorboard = false;
  /// `HOST:PORT` of the driver's HTTP endpoint, with `/metrics` for Prometheus, `/healthz` and `/readyz`; port 0: the
  /// system chooses one, and a notice names it. Empty: nothing listens. Whoever reaches it can read, and only read.
  std::string metrics_address = {};
};

/// The complete configuration of a trainer.
struct trainer_config {
  scaling_config scaling = {};
  run_config run = {};
  failure_config failure = {};
  checkpoint_config checkpoint = {};
  cluster_config cluster = {};
  monitoring_config monitoring = {};
  /// Passed to the training function as `ctx.config()`. Part of the run's identity: a resumed run must have the same.
  nlohmann::json config = nlohmann::json::object();
  /// Passed as `ctx.options()`: settings that do not affect the result, such as paths and intervals. May change when a
  /// run is resumed.
  nlohmann::json options = nlohmann::json::object();
  /// A checkpoint's directory, or a run's for its latest, whose state a new run starts with; empty for none. A mirror's
  /// `rclone:REMOTE:PATH/NAME` is fetched into the run's directory.
  std::filesystem::path load_checkpoint = {};
  /// How that state maps to this run's.
  load_options load = {};
  /// The worker processes' command-line arguments after the program's name.
  std::vector<std::string> arguments = {};
};

/// Rejects every invalid configuration before anything starts.
[[nodiscard]] expected<void> validate(const trainer_config& config);

/// A parsed `HOST:PORT` or `[IPV6]:PORT`.
struct endpoint {
  std::string host;
  std::uint16_t port = 0;

  bool operator==(const endpoint&) const = default;
};

/// Reads a time such as "90s", "30m", "2h", "1d" or "1h30m"; a number alone is seconds. At most 10 years.
[[nodiscard]] expected<std::chrono::milliseconds> parse_duration(const std::string& text);

/// Parses `HOST:PORT`. Port 0 is valid only where the system chooses the port; the caller checks that.
[[nodiscard]] expected<endpoint> parse_endpoint(const std::string& text);

[[nodiscard]] std::string to_string(const endpoint& where);

} // namespace troupe
