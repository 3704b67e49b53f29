#pragma once

#include <troupe/resources.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

/// What the driver and workers say to nodes, and what nodes say to the driver. Each message names its sender, what it
/// asks for and its answer; `inspect` is CAF's, but needs no CAF header.
namespace troupe {

/// The version of all messages between processes: grows whenever one of them changes. Driver and node compare theirs
/// before they say anything else.
inline constexpr std::uint32_t protocol_version = 2;

/// Asks what a node has. Sent by a trainer before placement; answered by `node_offer`.
/// Fails with `errc::unsupported_version` if the node speaks another version of the protocol.
struct offer_request {
  run_id run;
  std::uint32_t protocol = protocol_version;

  bool operator==(const offer_request&) const = default;
};

template <class Inspector>
bool inspect(Inspector& f, offer_request& x) {
  return f.object(x).fields(f.field("run", x.run), f.field("protocol", x.protocol));
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

} // namespace troupe
