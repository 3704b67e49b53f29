#pragma once

#include <troupe/error.hpp>
#include <troupe/load_options.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/tensor.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

/// What the actors say to each other. Grouped by direction; whatever can arrive late carries the run and, once there is
/// one, the generation. Bulk bytes never travel here. Each struct's `inspect` is CAF's, but needs no CAF header.
namespace troupe {

/// Named numbers: metrics of a step, or of a run. Ordered by name.
using metric_map = std::map<std::string, double>;

/// What a worker wants of a node, or what a node has. 0 CPUs in a request: takes part in no accounting.
struct resources {
  std::uint32_t cpus = 0;
  /// A worker may take a fraction: with 0.25, up to four of one run share a GPU. Above one, and on a node, whole ones.
  double gpus = 0;

  auto operator<=>(const resources&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, resources& x) {
  return f.object(x).fields(f.field("cpus", x.cpus), f.field("gpus", x.gpus));
}

// -- driver to node -------------------------------------------------------------------------------------------------

/// Asks what a node has. Sent by a trainer before placement; answered by `node_offer`.
struct offer_request {
  run_id run;

  bool operator==(const offer_request&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, offer_request& x) {
  return f.object(x).fields(f.field("run", x.run));
}

/// What a node has to give to a run. A GPU that another run's workers have is not among it.
struct node_offer {
  /// The host's name, for people.
  std::string host;
  /// The address at which other hosts reach this one: what the node was told to listen on.
  std::string address;
  std::uint32_t pid = 0;
  resources free;

  bool operator==(const node_offer&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, node_offer& x) {
  return f.object(x).fields(f.field("host", x.host), f.field("address", x.address), f.field("pid", x.pid),
                            f.field("free", x.free));
}

/// Prepares a node for a run: it opens the program and keeps it open. Sent once per run and node, with the handles that
/// the run's workers will need. Answered by `run_opened`; fails with `errc::program_mismatch` or `errc::not_found`.
struct open_run {
  run_id run;
  std::string run_name;
  /// The driver's executable, as an absolute path on the driver's host.
  std::string program_path;
  std::string build_id;
  /// 64 hexadecimal digits; workers prove that they know it.
  std::string secret;
  /// A worker whose process says nothing for so long is looked at, and killed unless it only waits for a processor; in
  /// milliseconds.
  std::uint64_t heartbeat_timeout_ms = 0;

  bool operator==(const open_run&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, open_run& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("run_name", x.run_name),
                            f.field("program_path", x.program_path), f.field("build_id", x.build_id),
                            f.field("secret", x.secret), f.field("heartbeat_timeout_ms", x.heartbeat_timeout_ms));
}

/// The node has the program open.
struct run_opened {
  run_id run;
  /// Where the program lies on that host.
  std::string program_path;

  bool operator==(const run_opened&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, run_opened& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("program_path", x.program_path));
}

/// One worker process to start.
struct worker_launch {
  worker_id worker;
  /// Variables added to the node's own environment: torchrun's (RANK, WORLD_SIZE, ...) as they are at the start.
  std::map<std::string, std::string> environment;
  /// The GPUs that it takes, or the fraction of one; the node chooses which.
  double gpus = 0;

  bool operator==(const worker_launch&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, worker_launch& x) {
  return f.object(x).fields(f.field("worker", x.worker), f.field("environment", x.environment),
                            f.field("gpus", x.gpus));
}

/// Starts worker processes. Answered by `workers_started` once each is executing the program. Not idempotent.
struct start_workers {
  run_id run;
  std::vector<std::string> arguments;
  std::vector<worker_launch> workers;

  bool operator==(const start_workers&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, start_workers& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("arguments", x.arguments), f.field("workers", x.workers));
}

/// The process ids, in the order of `start_workers::workers`.
struct workers_started {
  run_id run;
  std::vector<std::uint32_t> pids;

  bool operator==(const workers_started&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, workers_started& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("pids", x.pids));
}

/// Kills what is left of a run's workers on this node and forgets the run. Answered when none is left. Idempotent.
struct end_run {
  run_id run;

  bool operator==(const end_run&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, end_run& x) {
  return f.object(x).fields(f.field("run", x.run));
}

/// Kills one worker: it was fenced, or is not needed any more. Its end comes as `worker_ended`. Idempotent.
struct kill_worker {
  run_id run;
  worker_id worker;
  /// For the log, and for `worker_ended`.
  std::string reason;

  bool operator==(const kill_worker&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, kill_worker& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("reason", x.reason));
}

// -- worker to its node ---------------------------------------------------------------------------------------------

/// A worker process asks to be let in. Answered by `join_challenge`; fails with `errc::stale_generation` when the node
/// has no such run or did not start that worker.
struct join_request {
  run_id run;
  worker_id worker;
  /// Random, 32 hexadecimal digits: the node must show that it knows the run's secret, too.
  std::string nonce;

  bool operator==(const join_request&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, join_request& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("nonce", x.nonce));
}

/// The node's half of the handshake.
struct join_challenge {
  /// Random, 32 hexadecimal digits, good for one `join_proof`.
  std::string nonce;
  /// What the node makes of the worker's nonce with the run's secret.
  std::string proof;

  bool operator==(const join_challenge&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, join_challenge& x) {
  return f.object(x).fields(f.field("nonce", x.nonce), f.field("proof", x.proof));
}

/// The worker's half of the handshake. Answered by the handles of the run's actors; fails with `errc::wrong_secret`.
struct join_proof {
  run_id run;
  worker_id worker;
  std::string proof;

  bool operator==(const join_proof&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, join_proof& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("proof", x.proof));
}

/// What the training thread of a worker stands in.
enum class activity_kind : std::uint8_t {
  /// The training function's own code.
  user_code = 1,
  /// A collective operation: it waits for other ranks.
  collective = 2,
  /// Writing a checkpoint, or waiting for its commit.
  checkpoint = 3,
  /// It waits for an actor of the driver's.
  control = 4,
};

template <class Inspector>
bool inspect(Inspector& f, activity_kind& x) {
  auto get = [&x] { return static_cast<std::uint8_t>(x); };
  auto set = [&x](std::uint8_t value) {
    x = static_cast<activity_kind>(value);
    return value >= 1 && value <= 4;
  };
  return f.apply(get, set);
}

/// A worker's process lives, and what its training thread does. Sent several times a second, never answered.
struct worker_beat {
  run_id run;
  worker_id worker;
  generation_id generation;
  /// The last step whose barrier was committed.
  step_id committed;
  /// Changes whenever the training thread does anything: enters or leaves a call, or says that it is alive.
  std::uint64_t progress = 0;
  activity_kind activity = activity_kind::control;

  bool operator==(const worker_beat&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, worker_beat& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("generation", x.generation),
                            f.field("committed", x.committed), f.field("progress", x.progress),
                            f.field("activity", x.activity));
}

// -- node to driver -------------------------------------------------------------------------------------------------

/// A node lives, and the last that its workers of a run have told. Sent several times a second, never answered.
struct node_beat {
  run_id run;
  std::vector<worker_beat> workers;

  bool operator==(const node_beat&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, node_beat& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("workers", x.workers));
}

/// A node is going away: its workers are to be replaced or drained within the time that is left.
struct node_leaving {
  run_id run;
  std::uint64_t grace_ms = 0;

  bool operator==(const node_leaving&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, node_leaving& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("grace_ms", x.grace_ms));
}

/// A worker process is gone; sent exactly once for each that was started.
struct worker_ended {
  run_id run;
  worker_id worker;
  /// 128 + signal when a signal ended it.
  std::int32_t exit_status = 0;
  /// "exit code 3", "killed by signal 9 (SIGKILL), out of memory".
  std::string description;
  std::vector<std::string> last_lines;
  /// The kernel seems to have killed it for want of memory.
  bool out_of_memory = false;

  bool operator==(const worker_ended&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, worker_ended& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("exit_status", x.exit_status),
                            f.field("description", x.description), f.field("last_lines", x.last_lines),
                            f.field("out_of_memory", x.out_of_memory));
}

/// What a worker process wrote to its standard output or error, in whole lines.
struct worker_output {
  run_id run;
  worker_id worker;
  std::vector<std::string> lines;

  bool operator==(const worker_output&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, worker_output& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("lines", x.lines));
}

// -- worker to driver -----------------------------------------------------------------------------------------------

/// A worker has joined and waits for `begin_training`. Sent once.
struct worker_ready {
  run_id run;
  worker_id worker;
  std::uint32_t pid = 0;
  std::string host;
  std::string build_id;
  /// JSON text of the numerics fingerprint.
  std::string numerics;

  bool operator==(const worker_ready&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, worker_ready& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("pid", x.pid),
                            f.field("host", x.host), f.field("build_id", x.build_id), f.field("numerics", x.numerics));
}

/// What a worker is about to do for the whole run, sent before its first step. All workers must say the same, and the
/// same as the checkpoint that is resumed from. Answered by `plan_accepted` when all have said it; fails with
/// `errc::mismatch`, which names the differences.
struct run_plan {
  run_id run;
  generation_id generation;
  worker_id worker;
  std::uint64_t steps = 0;
  std::uint64_t batch_samples = 0;
  std::uint64_t data_samples = 0;
  std::string data_fingerprint;
  /// Names, dtypes and shapes of the tracked tensors, one per line.
  std::string tensors;
  /// Which of the training function's loops this is, from 0.
  std::uint32_t loop = 0;
  /// The results of the evaluations since the loop before: who joins later computes none of them.
  std::vector<std::vector<double>> evaluations;
  /// The size of the tracked tensors, which decides how joiners get them.
  std::uint64_t state_bytes = 0;

  bool operator==(const run_plan&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, run_plan& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation), f.field("worker", x.worker),
                            f.field("steps", x.steps), f.field("batch_samples", x.batch_samples),
                            f.field("data_samples", x.data_samples), f.field("data_fingerprint", x.data_fingerprint),
                            f.field("tensors", x.tensors), f.field("loop", x.loop),
                            f.field("evaluations", x.evaluations), f.field("state_bytes", x.state_bytes));
}

/// All workers have the same plan: begin.
struct plan_accepted {
  generation_id generation;

  bool operator==(const plan_accepted&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, plan_accepted& x) {
  return f.object(x).fields(f.field("generation", x.generation));
}

/// What a worker knows once its group is gone and no thread of its own touches memory under that generation any more.
/// Sent by its training thread when a collective operation was aborted or found a peer missing, when a command says so,
/// and by a joiner that asks for its first place, or has followed the others to where they are. Answered by
/// `next_generation` when all who are left have reported; fails when the run is ending. Repeating it is harmless.
struct regroup_report {
  run_id run;
  /// The generation that is over; 0 from a joiner that was in none.
  generation_id generation;
  worker_id worker;
  /// Whether it has the run's state: a joiner has none until somebody gives it.
  bool has_state = true;
  /// Whether it stands between two steps, where joiners can be let in.
  bool between_steps = false;
  /// Whether a step was under way.
  bool in_step = false;
  /// The last step whose barrier this worker has committed: it counts as applied.
  step_id committed;
  /// Whether it holds the reduced gradient of the step after that one.
  bool holds_next = false;
  /// The highest command that the barrier of `committed` has agreed on.
  std::uint64_t commands_agreed = 0;
  /// How many evaluations it has finished; it holds the result of the last.
  std::uint64_t evaluations = 0;
  /// The number of the staging group that this joiner was in last; 0 for none.
  std::uint64_t staging = 0;
  /// How this worker found out, if nobody had told it.
  error reason;

  bool operator==(const regroup_report&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, regroup_report& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation), f.field("worker", x.worker),
                            f.field("has_state", x.has_state), f.field("between_steps", x.between_steps),
                            f.field("in_step", x.in_step), f.field("committed", x.committed),
                            f.field("holds_next", x.holds_next), f.field("commands_agreed", x.commands_agreed),
                            f.field("evaluations", x.evaluations), f.field("staging", x.staging),
                            f.field("reason", x.reason));
}

/// A joiner that follows the others in a staging group has applied what they have, but for the last step or two.
/// Pushed.
struct caught_up {
  run_id run;
  worker_id worker;
  /// Of the others.
  generation_id generation;
  /// The number of its staging group.
  std::uint64_t staging = 0;
  step_id step;

  bool operator==(const caught_up&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, caught_up& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("generation", x.generation),
                            f.field("staging", x.staging), f.field("step", x.step));
}

/// One report of one rank.
struct metric_row {
  step_id step;
  /// Since the start of the worker's training function, in microseconds.
  std::uint64_t time_us = 0;
  metric_map values;

  bool operator==(const metric_row&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, metric_row& x) {
  return f.object(x).fields(f.field("step", x.step), f.field("time_us", x.time_us), f.field("values", x.values));
}

/// Which shards a rank computed in a step: the debug ledger's entry.
struct ledger_row {
  step_id step;
  generation_id generation;
  shard_range shards;
  /// `digest_of_samples` of what the training function was given in them; 0 for no shards.
  std::uint64_t samples_digest = 0;

  bool operator==(const ledger_row&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, ledger_row& x) {
  return f.object(x).fields(f.field("step", x.step), f.field("generation", x.generation), f.field("shards", x.shards),
                            f.field("samples_digest", x.samples_digest));
}

/// How long a rank did not get on because its group was formed anew.
struct pause_row {
  /// The first generation in which it got on again.
  generation_id generation;
  /// The first step that it committed there.
  step_id step;
  /// From the barrier before to that step's, in microseconds.
  std::uint64_t pause_us = 0;

  bool operator==(const pause_row&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, pause_row& x) {
  return f.object(x).fields(f.field("generation", x.generation), f.field("step", x.step),
                            f.field("pause_us", x.pause_us));
}

/// What has gathered at a worker since its last batch: pushed, never answered.
struct metrics_batch {
  run_id run;
  worker_id worker;
  rank_id rank;
  /// The last step that this rank has applied.
  step_id applied;
  /// Reports that were given up because the worker's buffer was full.
  std::uint64_t dropped = 0;
  std::vector<metric_row> rows;
  std::vector<ledger_row> ledger;
  std::vector<pause_row> pauses;
  /// The steps after which a due checkpoint was left out, because as many as may be were in flight. From rank 0.
  std::vector<step_id> skipped;

  bool operator==(const metrics_batch&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, metrics_batch& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker), f.field("rank", x.rank),
                            f.field("applied", x.applied), f.field("dropped", x.dropped), f.field("rows", x.rows),
                            f.field("ledger", x.ledger), f.field("pauses", x.pauses), f.field("skipped", x.skipped));
}

/// The training function has returned, or thrown. The worker stays until it is released.
struct worker_finished {
  run_id run;
  generation_id generation;
  worker_id worker;
  /// The last step that was applied.
  step_id step;
  /// Empty code: it returned.
  error reason;
  /// Whether the function returned because a stop was requested.
  bool stopped = false;
  /// Whether it ended because its group was lost, and can only begin again from the latest checkpoint.
  bool needs_restart = false;
  /// Identity of the tracked state; empty when the function threw or tracked nothing.
  std::string state_sha256;

  bool operator==(const worker_finished&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, worker_finished& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation), f.field("worker", x.worker),
                            f.field("step", x.step), f.field("reason", x.reason), f.field("stopped", x.stopped),
                            f.field("needs_restart", x.needs_restart), f.field("state_sha256", x.state_sha256));
}

// -- driver to worker -----------------------------------------------------------------------------------------------

/// Which communicator carries the gradients.
enum class transport_kind : std::uint8_t {
  self = 1,
  gloo = 2,
  shm = 3,
  hierarchical = 4,
};

template <class Inspector>
bool inspect(Inspector& f, transport_kind& x) {
  auto get = [&x] { return static_cast<std::uint8_t>(x); };
  auto set = [&x](std::uint8_t value) {
    x = static_cast<transport_kind>(value);
    return value >= 1 && value <= 4;
  };
  return f.apply(get, set);
}

/// How the parts of checkpoints get into the run's directory, and their bytes back to the workers.
enum class checkpoint_sync : std::uint8_t {
  /// Each worker looks whether it sees that directory; if not, its parts are streamed.
  automatic = 1,
  /// Workers write and read files: they share a file system with the driver.
  shared = 2,
  /// All parts go to the driver over connections of their own.
  stream = 3,
};

template <class Inspector>
bool inspect(Inspector& f, checkpoint_sync& x) {
  auto get = [&x] { return static_cast<std::uint8_t>(x); };
  auto set = [&x](std::uint8_t value) {
    x = static_cast<checkpoint_sync>(value);
    return value >= 1 && value <= 3;
  };
  return f.apply(get, set);
}

/// What carries gradients that lie in the memory of GPUs.
enum class gpu_gradients : std::uint8_t {
  /// NCCL where each rank has a GPU of its own and all have the library in one version; else the hosts' memory.
  automatic = 0,
  /// The hosts' memory, and the generation's transport: that was asked for by name.
  by_host = 1,
  /// NCCL, or nothing: it was asked for by name.
  by_nccl = 2,
};

template <class Inspector>
bool inspect(Inspector& f, gpu_gradients& x) {
  auto get = [&x] { return static_cast<std::uint8_t>(x); };
  auto set = [&x](std::uint8_t value) {
    x = static_cast<gpu_gradients>(value);
    return value <= 2;
  };
  return f.apply(get, set);
}

/// A worker's place in a generation, and who else is in it.
struct group_place {
  /// 0 for a joiner that has no place yet.
  generation_id generation;
  /// Which start of the run this belongs to, from 1: one that is started again from a checkpoint begins its next.
  std::uint32_t attempt = 1;
  /// Why this generation was formed, for people; empty for the first.
  std::string reason;
  rank_id rank;
  std::uint32_t world_size = 0;
  std::uint32_t local_rank = 0;
  std::uint32_t local_world_size = 0;
  std::uint32_t node_rank = 0;
  /// By rank.
  std::vector<shard_range> ownership;
  transport_kind transport = transport_kind::self;
  /// The node of each rank, as indices: ranks of one node can share memory.
  std::vector<std::uint32_t> nodes;
  /// The address that the data plane binds to on this worker's host.
  std::string data_address;
  /// The one by which other hosts reach it.
  std::string host_address;

  bool operator==(const group_place&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, group_place& x) {
  return f.object(x).fields(f.field("generation", x.generation), f.field("attempt", x.attempt),
                            f.field("reason", x.reason), f.field("rank", x.rank), f.field("world_size", x.world_size),
                            f.field("local_rank", x.local_rank), f.field("local_world_size", x.local_world_size),
                            f.field("node_rank", x.node_rank), f.field("ownership", x.ownership),
                            f.field("transport", x.transport), f.field("nodes", x.nodes),
                            f.field("data_address", x.data_address), f.field("host_address", x.host_address));
}

/// Everything a worker needs to enter the training function. Sent once all workers are ready, and to a joiner once it
/// is ready itself.
struct begin_training {
  run_id run;
  worker_id worker;
  /// Without a generation for a joiner: it comes as far as its first loop by itself, and asks for a place there.
  group_place place;
  /// For a joiner: the results of the evaluations that the others have done before each loop, in order. Its own loops
  /// before the last of these are skipped.
  std::vector<std::vector<std::vector<double>>> earlier_evaluations;
  /// The name under which the program registered its training function.
  std::string function;
  std::string run_name;
  /// Absolute path of the run's directory, as the driver sees it.
  std::string run_directory;
  std::uint64_t seed = 0;
  std::uint32_t shards = 0;
  /// JSON text of the user's configuration.
  std::string configuration;
  /// JSON text of what the user says beside it, which does not decide the result.
  std::string options;
  /// The last step; 0 leaves it to the training function.
  std::uint64_t steps = 0;
  /// Directory of the checkpoint to restore; empty for a fresh start.
  std::string restore_from;
  /// Whether the checkpoint is of this run (its step count goes on), or of another that lends its state only.
  bool restore_step = false;
  /// The step that this start of the run goes on from.
  step_id restored_step;
  /// A checkpoint after every so many steps; 0 for none but the last.
  std::uint64_t checkpoint_every_steps = 0;
  /// How many checkpoints may be written behind training's back; 0: it waits for each.
  std::uint32_t checkpoints_in_flight = 1;
  checkpoint_sync sync = checkpoint_sync::automatic;
  /// Chunks that have not changed since the last checkpoint are not written again.
  bool reuse_unchanged = true;
  /// `HOST:PORT` at which the driver takes parts that are streamed; empty for nowhere.
  std::string part_stream;
  /// How the tensors of a checkpoint of another run become this run's.
  load_options load;
  /// The sum is handed to the transport instead of the canonical tree.
  bool fast_reduction = false;
  bool keep_ledger = false;
  /// Digest the tracked state around the body of every step, not only of the first.
  bool check_every_step = false;
  /// In every so many steps one shard is computed a second time, by another worker, and compared; 0: in none.
  std::uint64_t verify_determinism = 0;
  /// Limit of one collective operation, in milliseconds.
  std::uint64_t collective_timeout_ms = 0;
  /// The driver finds who stands still and ends what waits for it: the gradients' group waits without a limit.
  bool driver_ends_waits = false;
  /// The GPUs that this worker has, or the fraction of one; 0: it computes on the CPU.
  double gpus = 0;
  gpu_gradients gradients_on_gpu = gpu_gradients::automatic;

  bool operator==(const begin_training&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, begin_training& x) {
  return f.object(x).fields(
      f.field("run", x.run), f.field("worker", x.worker), f.field("place", x.place),
      f.field("earlier_evaluations", x.earlier_evaluations), f.field("function", x.function),
      f.field("run_name", x.run_name), f.field("run_directory", x.run_directory), f.field("seed", x.seed),
      f.field("shards", x.shards), f.field("configuration", x.configuration), f.field("options", x.options),
      f.field("steps", x.steps), f.field("restore_from", x.restore_from), f.field("restore_step", x.restore_step),
      f.field("restored_step", x.restored_step), f.field("checkpoint_every_steps", x.checkpoint_every_steps),
      f.field("checkpoints_in_flight", x.checkpoints_in_flight), f.field("sync", x.sync),
      f.field("reuse_unchanged", x.reuse_unchanged), f.field("part_stream", x.part_stream), f.field("load", x.load),
      f.field("fast_reduction", x.fast_reduction), f.field("keep_ledger", x.keep_ledger),
      f.field("check_every_step", x.check_every_step), f.field("verify_determinism", x.verify_determinism),
      f.field("collective_timeout_ms", x.collective_timeout_ms), f.field("driver_ends_waits", x.driver_ends_waits),
      f.field("gpus", x.gpus), f.field("gradients_on_gpu", x.gradients_on_gpu));
}

/// A joiner's place in a staging group: a communicator beside the one of a generation, over which its members, who
/// are the first ranks, give the joiners the state and what happens to it, while they train on.
struct staging_place {
  /// The number of the command that told the others; 0 for no staging group.
  std::uint64_t number = 0;
  /// Of the others.
  generation_id generation;
  rank_id rank;
  std::uint32_t sources = 0;
  std::uint32_t joiners = 0;
  /// The address that the data plane binds to on this worker's host.
  std::string data_address;

  bool operator==(const staging_place&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, staging_place& x) {
  return f.object(x).fields(f.field("number", x.number), f.field("generation", x.generation), f.field("rank", x.rank),
                            f.field("sources", x.sources), f.field("joiners", x.joiners),
                            f.field("data_address", x.data_address));
}

/// What of the tracked state a rank compares with the others at the first barrier of its generation.
enum class state_comparison : std::uint8_t {
  /// The slice whose turn it is, as at every barrier.
  slice = 1,
  /// All of it: joiners, and one who was there before them.
  whole = 2,
  /// Nothing: joiners have come, and others are compared with them.
  nothing = 3,
};

template <class Inspector>
bool inspect(Inspector& f, state_comparison& x) {
  auto get = [&x] { return static_cast<std::uint8_t>(x); };
  auto set = [&x](std::uint8_t value) {
    x = static_cast<state_comparison>(value);
    return value >= 1 && value <= 3;
  };
  return f.apply(get, set);
}

/// A worker's place in a new generation, and what all of them do with the step that was under way.
struct next_generation {
  group_place place;
  /// Whether this worker is not needed any more, and has no place: its process may end.
  bool released = false;
  /// Who has not committed this step holds its reduced gradient, and applies it. Any later step is computed again.
  step_id commit_point;
  /// What the barrier of `commit_point` has agreed on.
  std::uint64_t commands_agreed = 0;
  /// Who has finished fewer evaluations takes the last result from rank `evaluation_source`; all take part in that if
  /// `evaluations_differ`.
  std::uint64_t evaluations = 0;
  bool evaluations_differ = false;
  rank_id evaluation_source;
  /// The ranks that get the run's state from the others before anything else.
  std::vector<rank_id> joiners;
  state_comparison comparison = state_comparison::slice;
  /// For a joiner: it has no place yet, follows the others here, and reports again when it has come to the boundary
  /// that they name, or cannot. Nothing else is filled in then.
  staging_place staging;
  /// For a joiner: the others have this loop of the training function behind them. It goes on to the next, before
  /// which they have found `next_evaluations`. Nothing else is filled in then.
  bool skips_loop = false;
  std::vector<std::vector<double>> next_evaluations;

  bool operator==(const next_generation&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, next_generation& x) {
  return f.object(x).fields(f.field("place", x.place), f.field("released", x.released),
                            f.field("commit_point", x.commit_point), f.field("commands_agreed", x.commands_agreed),
                            f.field("evaluations", x.evaluations), f.field("evaluations_differ", x.evaluations_differ),
                            f.field("evaluation_source", x.evaluation_source), f.field("joiners", x.joiners),
                            f.field("comparison", x.comparison), f.field("staging", x.staging),
                            f.field("skips_loop", x.skips_loop), f.field("next_evaluations", x.next_evaluations));
}

/// What a command asks for, effective after the step whose barrier first carried its number.
enum class command_kind : std::uint8_t {
  /// Take a checkpoint and return from the step loop.
  stop = 1,
  /// Take a checkpoint.
  checkpoint = 2,
  /// Form the next generation: members come or go, or the run pauses. Void in any other generation than
  /// `control_command::generation`.
  regroup = 3,
  /// Give `control_command::joiners` joiners the state, behind the back of the training. Void in any other
  /// generation than `control_command::generation`.
  stage = 4,
};

template <class Inspector>
bool inspect(Inspector& f, command_kind& x) {
  auto get = [&x] { return static_cast<std::uint8_t>(x); };
  auto set = [&x](std::uint8_t value) {
    x = static_cast<command_kind>(value);
    return value >= 1 && value <= 4;
  };
  return f.apply(get, set);
}

/// A command to all workers of a run; numbered from 1, sent to each in order.
struct control_command {
  run_id run;
  std::uint64_t sequence = 0;
  command_kind kind = command_kind::stop;
  /// The generation in which it was given.
  generation_id generation;
  std::uint32_t joiners = 0;
  /// Whether not all of them and the others are on one node.
  bool across_nodes = false;
  /// Of `stage`: which of the training function's loops they have come to, from 0. Void in any other.
  std::uint32_t loop = 0;

  bool operator==(const control_command&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, control_command& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("sequence", x.sequence), f.field("kind", x.kind),
                            f.field("generation", x.generation), f.field("joiners", x.joiners),
                            f.field("across_nodes", x.across_nodes), f.field("loop", x.loop));
}

/// Makes every pending and later operation of a generation's communicator fail with `reason`: a member is gone, or the
/// run is ending. The worker answers with a `regroup_report`, and hears which it is.
struct abort_training {
  run_id run;
  generation_id generation;
  error reason;

  bool operator==(const abort_training&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, abort_training& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation), f.field("reason", x.reason));
}

/// The worker's process may end.
struct release_worker {
  run_id run;

  bool operator==(const release_worker&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, release_worker& x) {
  return f.object(x).fields(f.field("run", x.run));
}

/// What does the training thread do, and whom does it wait for? For people; answered by `activity_answer`.
struct activity_question {
  run_id run;

  bool operator==(const activity_question&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, activity_question& x) {
  return f.object(x).fields(f.field("run", x.run));
}

struct activity_answer {
  /// "step 17, all_reduce of 4 MB, call 51, under way for 2.1 s; waits for rank 3".
  std::string text;

  bool operator==(const activity_answer&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, activity_answer& x) {
  return f.object(x).fields(f.field("text", x.text));
}

// -- worker to collectives actor ------------------------------------------------------------------------------------

/// One rank's contribution to an all-gather over the control plane, by which communicators find each other. Answered by
/// `exchange_result` when all ranks have sent theirs. Fails with `errc::stale_generation`.
struct exchange_request {
  run_id run;
  generation_id generation;
  /// Numbers the exchanges of a generation: 0, or that of a staging group.
  std::uint64_t sequence = 0;
  rank_id rank;
  std::string blob;
  /// How many ranks a staging group has; 0 for all ranks of the generation.
  std::uint32_t group_size = 0;

  bool operator==(const exchange_request&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, exchange_request& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation), f.field("sequence", x.sequence),
                            f.field("rank", x.rank), f.field("blob", x.blob), f.field("group_size", x.group_size));
}

/// Gives up an exchange that will not be complete, now and later. From the driver.
struct exchange_ended {
  run_id run;
  generation_id generation;
  std::uint64_t sequence = 0;

  bool operator==(const exchange_ended&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, exchange_ended& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation),
                            f.field("sequence", x.sequence));
}

/// A worker's device does not let go of a group that was given up, so that the process has to end: it asks for leave.
/// Answered by `exit_granted`, when it is its turn. From a worker to the collectives actor.
struct exit_request {
  run_id run;
  generation_id generation;
  worker_id worker;
  /// What hangs, for the log.
  std::string reason;

  bool operator==(const exit_request&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, exit_request& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation), f.field("worker", x.worker),
                            f.field("reason", x.reason));
}

/// The worker may end itself.
struct exit_granted {
  /// Nobody else has the state of the run: it is to be copied out first.
  bool is_last_holder = false;

  bool operator==(const exit_granted&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, exit_granted& x) {
  return f.object(x).fields(f.field("is_last_holder", x.is_last_holder));
}

/// A worker that has asked for leave goes on after all: what hung has come back. From the worker to the collectives
/// actor.
struct exit_withdrawn {
  run_id run;
  worker_id worker;

  bool operator==(const exit_withdrawn&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, exit_withdrawn& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker));
}

/// A worker's process has ended. From the driver to the collectives actor.
struct worker_gone {
  run_id run;
  worker_id worker;
  /// Members of the last generation that live: they have the state.
  std::uint32_t holders_left = 0;

  bool operator==(const worker_gone&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, worker_gone& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("worker", x.worker),
                            f.field("holders_left", x.holders_left));
}

/// The blobs of all ranks, by rank.
struct exchange_result {
  generation_id generation;
  std::vector<std::string> blobs;

  bool operator==(const exchange_result&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, exchange_result& x) {
  return f.object(x).fields(f.field("generation", x.generation), f.field("blobs", x.blobs));
}

// -- worker to checkpoint store -------------------------------------------------------------------------------------

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

// -- driver to checkpoint store -------------------------------------------------------------------------------------

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

// -- driver to collectives actor and checkpoint store
// ------------------------------------------------------------------------------------

/// Begins a generation; exchanges and parts of checkpoints of older ones are failed with `errc::stale_generation`. Sent
/// when a member is lost, without a size, and again when it is known who is left.
struct generation_started {
  run_id run;
  generation_id generation;
  std::uint32_t world_size = 0;

  bool operator==(const generation_started&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, generation_started& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("generation", x.generation),
                            f.field("world_size", x.world_size));
}

} // namespace troupe
