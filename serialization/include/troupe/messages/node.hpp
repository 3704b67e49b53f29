#pragma once

#include <troupe/inspect.hpp>
#include <troupe/resources.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// The messages of the driver and workers to nodes, and of nodes to the driver. The comment of a message names its
/// sender, its purpose and its answer.
namespace troupe {

/// The version of all messages between processes. Increase it whenever one of them changes. Driver and node compare
/// their versions first.
inline constexpr std::uint32_t protocol_version = 11;

/// Shows that a driver may command this run.
struct run_proof {
  run_id run;
  /// As in `open_run`.
  std::string secret;

  bool operator==(const run_proof&) const = default;
};

TROUPE_INSPECT(run_proof, run, secret)

/// A run's place in the queue for resources, which is the same on every node: older runs go first.
struct lease_ticket {
  /// When its driver asked first, in milliseconds since the epoch, by the clock of the driver's host.
  std::uint64_t since_ms = 0;
  run_id run;

  auto operator<=>(const lease_ticket&) const = default;
};

TROUPE_INSPECT(lease_ticket, since_ms, run)

/// A run that needs resources, and waits while others have them.
struct waiting_run {
  lease_ticket ticket;
  /// For people.
  std::string run_name;
  /// What each of its workers takes.
  resources each;

  bool operator==(const waiting_run&) const = default;
};

TROUPE_INSPECT(waiting_run, ticket, run_name, each)

/// Asks for a node's free resources. Sent by a trainer before placement, and again while the run waits for resources;
/// answered by `node_offer`. Fails with `errc::unsupported_version` if the node has another version of the protocol.
struct offer_request {
  run_id run;
  std::uint32_t protocol = protocol_version;
  /// As in `open_run`. What that run has counts as free.
  std::optional<run_proof> predecessor = {};
  /// Keeps the run's place in the queue for a few seconds.
  std::optional<waiting_run> waits = {};

  bool operator==(const offer_request&) const = default;
};

TROUPE_INSPECT(offer_request, run, protocol, predecessor, waits)

/// A node's offer to a run.
struct node_offer {
  /// The host's name, for people.
  std::string host;
  /// The address at which other hosts reach this one, which is the one that the node listens on.
  std::string address;
  std::uint32_t pid = 0;
  /// What the run could have now.
  resources free;
  /// What the node has in all.
  resources capacity = {};
  /// Who has the rest, for people; empty if nobody.
  std::string holders = {};
  /// By name, such as "zone": "a".
  std::map<std::string, std::string> labels = {};

  bool operator==(const node_offer&) const = default;
};

TROUPE_INSPECT(node_offer, host, address, pid, free, capacity, holders, labels)

/// Whether a node takes workers.
enum class node_phase : std::uint8_t {
  available = 1,
  /// It takes no new ones, and runs replace those that it has. Ends with `resume_node`.
  drained = 2,
  /// Its caf-node ends.
  leaving = 3,
};

TROUPE_INSPECT_ENUM(node_phase, available, leaving)

/// A run on a node.
struct node_run {
  std::string run;
  std::string name;
  /// Living processes of this run on the node.
  std::uint32_t workers = 0;

  bool operator==(const node_run&) const = default;
};

TROUPE_INSPECT(node_run, run, name, workers)

/// What a node says of itself to drivers and tools.
struct node_report {
  /// The host's name, for people.
  std::string host;
  /// Troupe's version, for people.
  std::string version;
  /// What it speaks; a driver uses no node of another version.
  std::uint32_t protocol = protocol_version;
  std::uint32_t pid = 0;
  node_phase phase = node_phase::available;
  resources offered;
  /// What no run has. CPUs are shared, so that these are all it offers.
  resources free;
  /// As in `caf-node --label`.
  std::map<std::string, std::string> labels = {};
  std::vector<node_run> runs = {};
  /// When its certificate of the cluster expires, in seconds since 1970; nothing without one.
  std::optional<std::int64_t> certificate_expires = {};

  bool operator==(const node_report&) const = default;
};

TROUPE_INSPECT(node_report, host, version, protocol, pid, phase, offered, free, labels, runs, certificate_expires)

/// Asks a node about itself. Answered by `node_report`, at once.
struct node_question {
  bool operator==(const node_question&) const = default;
};

TROUPE_INSPECT(node_question)

/// The node takes no new workers until `resume_node`, and its drivers replace those that it has, between steps. What
/// has no replacement leaves after `patience_ms`. Sent at a user's request; answered by `node_report`, at once.
/// Idempotent.
struct drain_node {
  std::uint64_t patience_ms = 0;

  bool operator==(const drain_node&) const = default;
};

TROUPE_INSPECT(drain_node, patience_ms)

/// The node takes workers again. Answered by `node_report`, at once. Idempotent.
struct resume_node {
  bool operator==(const resume_node&) const = default;
};

TROUPE_INSPECT(resume_node)

/// Leases resources of a node to a run, in place of what it has leased there before; nothing gives them back, and
/// leaves an open run open. Sent by a trainer before it starts processes, to all nodes that it needs: if one refuses,
/// it gives the others back. A lease lasts as long as the run is open on the node, and for half a minute before. Fails
/// with `errc::busy`, naming who has the resources, and with `errc::unsatisfiable` for more than the node has.
/// Idempotent.
struct lease_request {
  lease_ticket ticket;
  /// For people.
  std::string run_name;
  resources amount;
  /// As in `open_run`. What that run has counts as this run's.
  std::optional<run_proof> predecessor = {};

  bool operator==(const lease_request&) const = default;
};

TROUPE_INSPECT(lease_request, ticket, run_name, amount, predecessor)

/// Which of several drivers has a run: the one with the greatest claim. A driver that is started again takes a greater
/// one than the last, and a random tag tells two apart that do so at once.
struct run_claim {
  std::uint64_t number = 1;
  std::string tag;

  auto operator<=>(const run_claim&) const = default;
};

TROUPE_INSPECT(run_claim, number, tag)

/// Prepares a node for a run: the node opens the program and keeps it open. Sent once per run and node, with the actor
/// handles that the run's workers need. Answered by `run_opened`; fails with `errc::program_mismatch`
/// (also for a program that this node must not start) or `errc::not_found`, and with `errc::wrong_secret` if there is a
/// run with this id and another secret.
struct open_run {
  run_id run;
  std::string run_name;
  /// The driver's executable, as an absolute path on the driver's host.
  std::string program_path;
  std::string build_id;
  /// 64 hexadecimal digits. Workers prove that they know it, and every command for the run repeats it.
  std::string secret;
  /// A worker without a heartbeat for this long is sampled and, unless it only waits for a processor, reported as
  /// silent in `node_beat`. The driver decides whether to kill it.
  std::uint64_t heartbeat_timeout_ms = 0;
  /// How long the workers continue when the connection to the driver is lost. 0: they end at once.
  std::uint64_t driver_grace_ms = 0;
  /// The run that was in this run's directory before. If this node still has it, without a driver, it is ended first.
  std::optional<run_proof> predecessor = {};
  run_claim claim = {};

  bool operator==(const open_run&) const = default;
};

TROUPE_INSPECT(open_run, run, run_name, program_path, build_id, secret, heartbeat_timeout_ms, driver_grace_ms,
               predecessor, claim)

/// A restarted driver takes over a run. The workers' messages wait for its `adopt_run`. Answered by `run_claimed`;
/// fails with `errc::stale_generation` if no process of the run is left here, with `errc::superseded` if a driver with
/// a greater claim has it, and with `errc::wrong_secret`. Idempotent.
struct claim_run {
  run_id run;
  /// As in `open_run`.
  std::string secret;
  run_claim claim = {};

  bool operator==(const claim_run&) const = default;
};

TROUPE_INSPECT(claim_run, run, secret, claim)

/// The driver of a run has a new connection to a node. Sent with the actor handles that the run's workers need from now
/// on. Answered by `run_claimed`; fails as `claim_run` does. Idempotent.
struct adopt_run {
  run_id run;
  /// As in `open_run`.
  std::string secret;
  run_claim claim = {};

  bool operator==(const adopt_run&) const = default;
};

TROUPE_INSPECT(adopt_run, run, secret, claim)

/// The node has the program open.
struct run_opened {
  run_id run;
  /// The program's path on that host.
  std::string program_path;

  bool operator==(const run_opened&) const = default;
};

TROUPE_INSPECT(run_opened, run, program_path)

/// A variable of `worker_launch::environment`: the process waits for a debugger before it joins.
inline constexpr const char* debugger_variable = "TROUPE_WAIT_FOR_DEBUGGER";

/// One worker process to start.
struct worker_launch {
  worker_id worker;
  /// Variables added to the node's environment: torchrun's (RANK, WORLD_SIZE, ...) with their values at the start.
  std::map<std::string, std::string> environment;
  /// The number of its GPUs, or its fraction of one. The node chooses them.
  double gpus = 0;

  bool operator==(const worker_launch&) const = default;
};

TROUPE_INSPECT(worker_launch, worker, environment, gpus)

/// Starts worker processes. Answered by `workers_started` once each executes the program. Fails, as do `end_run` and
/// `kill_worker`, with `errc::wrong_secret` for a sender that does not know the run's secret, and with
/// `errc::superseded` if a driver with a greater claim has the run, and with `errc::busy` if the run's workers would
/// take more than its lease, and others have the rest. Not idempotent.
struct start_workers {
  run_id run;
  std::vector<std::string> arguments;
  std::vector<worker_launch> workers;
  /// As in `open_run`.
  std::string secret = {};
  run_claim claim = {};
  /// What each of the run's workers takes.
  resources each = {};

  bool operator==(const start_workers&) const = default;
};

TROUPE_INSPECT(start_workers, run, arguments, workers, secret, claim, each)

/// The process ids, in the order of `start_workers::workers`.
struct workers_started {
  run_id run;
  std::vector<std::uint32_t> pids;

  bool operator==(const workers_started&) const = default;
};

TROUPE_INSPECT(workers_started, run, pids)

/// The processes of this run's workers do not end with their workers, but wait for another run of the group, as long as
/// the keeper lives that is sent with it, and until a run that is not of the group starts workers on this node. Sent
/// before workers are started. Fails as `start_workers` does. Idempotent.
struct keep_processes {
  run_id run;
  /// Random, 32 hexadecimal digits.
  std::string group;
  /// As in `open_run`.
  std::string secret = {};
  run_claim claim = {};

  bool operator==(const keep_processes&) const = default;
};

TROUPE_INSPECT(keep_processes, run, group, secret, claim)

/// Processes that waited for another run of a group have ended, for the sake of a run that is not of the group. From
/// their node to the group's keeper. Pushed.
struct processes_ended {
  /// Its address.
  std::string node;
  std::uint32_t count = 0;
  /// The name of that run.
  std::string run_name;

  bool operator==(const processes_ended&) const = default;
};

TROUPE_INSPECT(processes_ended, node, count, run_name)

/// Kills a run's remaining workers on this node and forgets the run. Answered when none is left. Idempotent.
struct end_run {
  run_id run;
  /// As in `open_run`.
  std::string secret = {};
  run_claim claim = {};

  bool operator==(const end_run&) const = default;
};

TROUPE_INSPECT(end_run, run, secret, claim)

/// Kills one worker that is fenced or no longer needed. `worker_ended` reports its end. Idempotent.
struct kill_worker {
  run_id run;
  worker_id worker;
  /// For the log, and for `worker_ended`.
  std::string reason;
  /// As in `open_run`.
  std::string secret = {};
  run_claim claim = {};

  bool operator==(const kill_worker&) const = default;
};

TROUPE_INSPECT(kill_worker, run, worker, reason, secret, claim)

/// Starts a worker process's handshake with its node. Answered by `join_challenge`; fails with `errc::stale_generation`
/// if the node has no such run or did not start that worker.
struct join_request {
  run_id run;
  worker_id worker;
  /// Random, 32 hexadecimal digits, by which the node proves that it knows the run's secret.
  std::string nonce;

  bool operator==(const join_request&) const = default;
};

TROUPE_INSPECT(join_request, run, worker, nonce)

/// The node's half of the handshake.
struct join_challenge {
  /// Random, 32 hexadecimal digits, valid for one `join_proof`.
  std::string nonce;
  /// Computed from the worker's nonce and the run's secret.
  std::string proof;

  bool operator==(const join_challenge&) const = default;
};

TROUPE_INSPECT(join_challenge, nonce, proof)

/// The worker's half of the handshake. Answered by the run's actor handles; fails with `errc::wrong_secret`.
struct join_proof {
  run_id run;
  worker_id worker;
  std::string proof;

  bool operator==(const join_proof&) const = default;
};

TROUPE_INSPECT(join_proof, run, worker, proof)

/// The kinds of work of a worker's training thread.
enum class activity_kind : std::uint8_t {
  /// The training function's own code.
  user_code = 1,
  /// A collective operation, which waits for other ranks.
  collective = 2,
  /// Writing a checkpoint, or waiting for its commit.
  checkpoint = 3,
  /// Waiting for one of the driver's actors.
  control = 4,
};

TROUPE_INSPECT_ENUM(activity_kind, user_code, control)

/// A worker's heartbeat, with what its training thread does. Sent several times a second, never answered.
struct worker_beat {
  run_id run;
  worker_id worker;
  generation_id generation;
  /// The last committed step.
  step_id committed;
  /// Changes whenever the training thread enters or leaves a call, or reports progress.
  std::uint64_t progress = 0;
  activity_kind activity = activity_kind::control;

  bool operator==(const worker_beat&) const = default;
};

TROUPE_INSPECT(worker_beat, run, worker, generation, committed, progress, activity)

/// Why a process that lives does not run.
enum class silence_kind : std::uint8_t {
  /// It is stopped, or hangs.
  frozen = 1,
  /// A debugger holds it.
  debugged = 2,
};

TROUPE_INSPECT_ENUM(silence_kind, frozen, debugged)

/// A worker whose process is alive but sends no heartbeats.
struct silent_worker {
  worker_id worker;
  /// For people: "its process is stopped".
  std::string why;
  silence_kind kind = silence_kind::frozen;

  bool operator==(const silent_worker&) const = default;
};

TROUPE_INSPECT(silent_worker, worker, why, kind)

/// A node's heartbeat, with the last heartbeats of its workers of a run. Sent several times a second, never answered.
struct node_beat {
  run_id run;
  std::vector<worker_beat> workers;
  /// All that are silent now.
  std::vector<silent_worker> silent = {};

  bool operator==(const node_beat&) const = default;
};

TROUPE_INSPECT(node_beat, run, workers, silent)

/// Another driver has taken the run over. From a node to the driver that had it. Never answered.
struct run_superseded {
  run_id run;

  bool operator==(const run_superseded&) const = default;
};

TROUPE_INSPECT(run_superseded, run)

/// The run is this driver's, and so are the processes that live here.
struct run_claimed {
  run_id run;
  /// One entry per process that was started and has not ended, with the last heartbeat if it has joined.
  std::vector<worker_beat> workers;

  bool operator==(const run_claimed&) const = default;
};

TROUPE_INSPECT(run_claimed, run, workers)

/// A node is about to shut down: its workers must be replaced or drained within the grace period.
struct node_leaving {
  run_id run;
  std::uint64_t grace_ms = 0;

  bool operator==(const node_leaving&) const = default;
};

TROUPE_INSPECT(node_leaving, run, grace_ms)

/// A node takes no new workers, and stays: those that it has are replaced elsewhere between steps. Workers without a
/// replacement leave after `patience_ms`.
struct node_drained {
  run_id run;
  std::uint64_t patience_ms = 0;

  bool operator==(const node_drained&) const = default;
};

TROUPE_INSPECT(node_drained, run, patience_ms)

/// A node that was drained takes workers again.
struct node_resumed {
  run_id run;

  bool operator==(const node_resumed&) const = default;
};

TROUPE_INSPECT(node_resumed, run)

/// A worker process has ended. Sent exactly once for each that was started.
struct worker_ended {
  run_id run;
  worker_id worker;
  /// 128 + signal if a signal ended it.
  std::int32_t exit_status = 0;
  /// "exit code 3", "killed by signal 9 (SIGKILL), out of memory".
  std::string description;
  std::vector<std::string> last_lines;
  /// The kernel seems to have killed it because memory was short.
  bool out_of_memory = false;
  /// The last step that it had committed, if it has said so.
  std::optional<step_id> committed = {};

  bool operator==(const worker_ended&) const = default;
};

TROUPE_INSPECT(worker_ended, run, worker, exit_status, description, last_lines, out_of_memory, committed)

/// Whole lines from a worker process's standard output or error. Answered when they are in its log: until then its node
/// sends no more.
struct worker_output {
  run_id run;
  worker_id worker;
  /// Counts this worker's messages, from 1. A repeated message has the same number, and is processed once.
  std::uint64_t number = 0;
  std::vector<std::string> lines;

  bool operator==(const worker_output&) const = default;
};

TROUPE_INSPECT(worker_output, run, worker, number, lines)

} // namespace troupe
