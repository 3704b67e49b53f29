#pragma once

#include <troupe/messages/type_ids.hpp>

#include <caf/allowed_unsafe_message_type.hpp>
#include <caf/result.hpp>
#include <caf/typed_actor.hpp>

/// The typed interfaces of Troupe's actors. The promise of each message is above its signature. Errors are
/// `troupe::errc`, carried as `caf::error` (see error_conversion.hpp).
namespace troupe::actors {

/// A node's host program is going away. Has no wire format: rejected if it arrives from another process.
struct drain_request {
  std::uint64_t grace_ms = 0;
};

/// One worker. Ends with its process, which its node starts and watches; the trainer commands the worker.
using worker_actor = caf::typed_actor<
    // Enters the training function on a thread of its own. Answers at once; the end comes as `worker_finished`. Not
    // idempotent.
    caf::result<void>(begin_training),
    // Hands the command to the training thread. Answers at once. Idempotent by sequence number.
    caf::result<void>(control_command),
    // Makes pending and later collective operations of that generation fail. Answers at once. Idempotent.
    caf::result<void>(abort_training),
    // Lets the process end. Answers at once, the process ends after it. Idempotent.
    caf::result<void>(release_worker),
    // Answers at once, even while the training thread is busy.
    caf::result<activity_answer>(activity_question)>;

/// Messages from nodes and workers to the driver of a run. Implemented by the trainer.
using run_control = caf::typed_actor<
    // A worker has joined, or has another handle for the driver. Fails with `errc::stale_generation` for a worker of
    // another run. Idempotent.
    caf::result<void>(worker_ready, worker_actor),
    // Answers once all workers have sent theirs. Fails with `errc::mismatch`, naming the differences. Idempotent.
    caf::result<plan_accepted>(run_plan),
    // Answers once all workers that are left have reported and their next generation is decided. Fails with
    // `errc::aborted` when the run is ending, `errc::stale_generation` when that generation is not the last.
    // Idempotent.
    caf::result<next_generation>(regroup_report),
    // A joiner is caught up with the others. Idempotent.
    caf::result<void>(caught_up),
    // Takes metrics in. Pushed. Idempotent by number.
    caf::result<void>(metrics_batch),
    // A training function has ended. Idempotent for each worker.
    caf::result<void>(worker_finished),
    // A worker process has ended; from its node. Idempotent for each worker.
    caf::result<void>(worker_ended),
    // Lines that a worker wrote; from its node.
    caf::result<void>(worker_output),
    // A node's heartbeat, with those of its workers. Never answered.
    caf::result<void>(node_beat),
    // A node is going away. Idempotent.
    caf::result<void>(node_leaving),
    // A node takes no more workers, and stays. Idempotent.
    caf::result<void>(node_drained),
    // A node that was drained takes workers again. Idempotent.
    caf::result<void>(node_resumed),
    // Another driver has the run now: this one ends, and leaves the workers alone. From a node. Pushed.
    caf::result<void>(run_superseded)>;

/// Forms the communicators of a run. Owned by the trainer.
using collectives_actor = caf::typed_actor<
    // Begins a generation. Pending exchanges of older ones fail with `errc::stale_generation`. Idempotent.
    caf::result<void>(generation_started),
    // An all-gather of one blob per rank: answers when all ranks have sent theirs. Fails with `errc::stale_generation`
    // for a generation other than the current one, and with `errc::aborted` for an exchange that was given up.
    // Repeating it is harmless.
    caf::result<exchange_result>(exchange_request),
    // Gives up an exchange: it fails for ranks that wait for it and for ranks that request it later. Idempotent.
    caf::result<void>(exchange_ended),
    // A worker that must exit requests a permit: answers when no other worker holds one. Fails with
    // `errc::stale_generation` for another run. Repeating it is harmless.
    caf::result<exit_granted>(exit_request),
    // The worker need not exit: its request fails with `errc::aborted`, and the next worker gets a permit. Idempotent.
    caf::result<void>(exit_withdrawn),
    // A worker is gone. From the trainer. Idempotent.
    caf::result<void>(worker_gone)>;

/// Commits the checkpoints of a run, and decides which stay. Ends with the run, before its directory is given up; runs
/// on a thread of its own.
using checkpoint_store = caf::typed_actor<
    // The common content of all manifests of the run. Send it before the first part. Idempotent.
    caf::result<void>(checkpoint_metadata),
    // Begins a generation: incomplete checkpoints of older ones fail with `errc::stale_generation`, now and later.
    // Idempotent.
    caf::result<void>(generation_started),
    // One rank's part. Answers when the checkpoint is durable or given up; fails only with `errc::stale_generation`.
    // Idempotent.
    caf::result<checkpoint_outcome>(checkpoint_part),
    // Looks for a worker's file, and makes one for it to look at. Answers at once. Idempotent.
    caf::result<storage_view>(storage_probe)>;

/// The handles of a run's actors in the driver.
struct driver_handles {
  run_control control;
  collectives_actor collectives;
  checkpoint_store store;
};

/// Follows the driver's handles. In a worker's process.
using driver_follower = caf::typed_actor<
    // The driver has these handles from now on: requests that it has not answered are repeated. From the node.
    // Idempotent.
    caf::result<void>(run_control, collectives_actor, checkpoint_store)>;

/// Keeps worker processes on nodes from one run of a driver to the next, as long as it lives. Owned by the driver.
using process_keeper = caf::typed_actor<
    // For users. From a node. Pushed.
    caf::result<void>(processes_ended)>;

/// The agent of one host: starts worker processes, watches them, and vouches for them. Owned by caf-node's main, or by
/// the trainer when the driver hosts it.
using node_actor = caf::typed_actor<
    // Says what the node has. Answers at once. Idempotent.
    caf::result<node_offer>(offer_request),
    // Leases resources to a run that will be opened. See `lease_request`.
    caf::result<void>(lease_request),
    // Opens the run's program and keeps it open. From then on the run ends with its driver: at once with the actor
    // behind `run_control`, after the run's grace period if the connection to it is lost. Fails as `open_run` says.
    // Idempotent for the same run.
    caf::result<run_opened>(open_run, run_control, collectives_actor, checkpoint_store),
    // Another driver takes the run over. Answers with the processes that live here. See `claim_run`.
    caf::result<run_claimed>(claim_run),
    // The driver has reconnected. The node passes these handles to the run's workers and repeats what was not received.
    // See `adopt_run`.
    caf::result<run_claimed>(adopt_run, run_control, collectives_actor, checkpoint_store),
    // Starts processes. Answers once each executes the program. Fails with `errc::stale_generation` for an unknown run,
    // `errc::already_exists` for a worker that was started before, and, as all commands for a run do, with
    // `errc::wrong_secret`. Not idempotent.
    caf::result<workers_started>(start_workers),
    // Processes of the run's workers wait for another run, as long as the keeper lives. See `keep_processes`.
    caf::result<void>(keep_processes, process_keeper),
    // Kills one worker. Answers at once; `worker_ended` reports the end. Idempotent.
    caf::result<void>(kill_worker),
    // A worker's heartbeat. Never answered.
    caf::result<void>(worker_beat),
    // Tells the drivers of all runs that the node is going away. Answers when no worker is left, at the latest shortly
    // before the grace period ends, when the host program ends the rest. From its host program. Idempotent.
    caf::result<void>(drain_request),
    // What the node has and does, for users. The last two change whether it takes workers. Idempotent.
    caf::result<node_report>(node_question), caf::result<node_report>(drain_node),
    caf::result<node_report>(resume_node),
    // Kills what is left of the run here. Answers when nothing is left. Idempotent.
    caf::result<void>(end_run),
    // A worker process asks to be let in; see `join_request`.
    caf::result<join_challenge>(join_request),
    // A worker process shows that it knows the run's secret. Answers with the handles it needs, and tells it when they
    // change. Fails with `errc::wrong_secret`.
    caf::result<run_control, collectives_actor, checkpoint_store>(join_proof, driver_follower)>;

/// An observer of a run. The run does not wait for it.
using run_observer = caf::typed_actor<caf::result<void>(run_started), caf::result<void>(run_progress),
                                      caf::result<void>(checkpoint_saved), caf::result<void>(checkpoint_skipped),
                                      caf::result<void>(checkpoint_failed), caf::result<void>(generation_record),
                                      caf::result<void>(run_notice)>;

/// Owns one run, from `fit_request` to `run_result`. An ordinary actor: spawn it in any actor system that was prepared
/// by `troupe::prepare`, subscribe to it, monitor it, ask it to stop.
using trainer_actor = caf::typed_actor<
    // Runs the training. Answers when the run has ended and none of its processes is left; a failed run is a
    // `run_result` with status `failed`. Fails with `errc::already_exists` when sent twice.
    caf::result<run_result>(fit_request),
    // Sends events to this observer from now on. Answers at once.
    caf::result<void>(run_observer),
    // Asks for the end of the run. Answers at once; the end is the answer to `fit_request`. Idempotent.
    caf::result<void>(stop_request),
    // Asks for a checkpoint after the current step. Answers at once; `checkpoint_saved` reports it.
    caf::result<void>(checkpoint_request),
    // Asks for another number of workers. Answers at once; `generation_record` reports the change. Fails with
    // `errc::invalid_argument` for none, or more than shards. Idempotent.
    caf::result<void>(resize_request),
    // Asks the run to hold after the current step. Answers at once. Idempotent.
    caf::result<void>(pause_request),
    // Lets it go on. Answers at once. Idempotent.
    caf::result<void>(resume_request)>;

/// Registers the types of all messages of Troupe with CAF. To be called once, before the first actor system is made.
void init_meta_objects();

} // namespace troupe::actors

CAF_BEGIN_TYPE_ID_BLOCK(troupe_actors, caf::first_custom_type_id + 1100)

CAF_ADD_TYPE_ID(troupe_actors, (troupe::actors::worker_actor))
CAF_ADD_TYPE_ID(troupe_actors, (troupe::actors::run_control))
CAF_ADD_TYPE_ID(troupe_actors, (troupe::actors::collectives_actor))
CAF_ADD_TYPE_ID(troupe_actors, (troupe::actors::checkpoint_store))
CAF_ADD_TYPE_ID(troupe_actors, (troupe::actors::node_actor))
CAF_ADD_TYPE_ID(troupe_actors, (troupe::actors::run_observer))
CAF_ADD_TYPE_ID(troupe_actors, (troupe::actors::trainer_actor))
CAF_ADD_TYPE_ID(troupe_actors, (troupe::actors::drain_request))
CAF_ADD_TYPE_ID(troupe_actors, (troupe::actors::driver_follower))
CAF_ADD_TYPE_ID(troupe_actors, (troupe::actors::process_keeper))

CAF_END_TYPE_ID_BLOCK(troupe_actors)

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::drain_request)
