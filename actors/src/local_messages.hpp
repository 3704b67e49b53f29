#pragma once

#include "down.hpp"
#include "trainer/control_journal.hpp"
#include "trainer/severity.hpp"
#include "trainer/starting_state.hpp"
#include <troupe/actors/decisions/run_condition.hpp>
#include <troupe/actors/handles.hpp>
#include <troupe/actors/process_launcher.hpp>
#include <troupe/actors/trainer.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/node_names.hpp>
#include <troupe/result.hpp>

#include <caf/allowed_unsafe_message_type.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

/// Messages that never leave their process: those that an actor sends to itself, and those between the trainer and the
/// actor that writes its files. They have no wire format and are rejected if they arrive from another process.
namespace troupe::actors {

/// The driver of a run is gone. From a node to itself.
struct driver_down {
  run_id run;
  /// Which of the connections to it: there may be another by now.
  std::uint64_t connection = 0;
  down_cause why = down_cause::ended;
};

/// The keeper of a group of processes is gone. From a node to itself.
struct keeper_down {
  std::string group;
};

/// A worker process has ended. Sent by a thread of the launcher to its node, which reports it to the driver in another
/// message, because this one cannot arrive over the network.
struct process_ended {
  worker_ended what;
};

/// A run's program was looked for. From the searching thread to its node.
struct program_searched {
  run_id run;
  /// Which of the searches for it.
  std::uint64_t number = 0;
  expected<found_program> program = {};
};

/// There are lines of a run's workers. From a thread of the launcher's to its node.
struct output_waiting {
  run_id run;
};

/// A node's connection is gone. From the trainer to itself.
struct node_down {
  /// An index into the roster.
  std::uint32_t node = 0;
  /// Which of the connections to it: there may be another by now.
  std::uint64_t connection = 0;
};

/// It was asked which nodes a run may use. From the asking thread to the trainer.
struct nodes_found {
  /// Or why it cannot be learnt.
  expected<std::vector<named_node>> nodes = {};
};

/// A node was dialled. From the dialling thread to the trainer.
struct node_dialled {
  /// An index into the roster.
  std::uint32_t node = 0;
  /// Null if the connection failed.
  std::shared_ptr<connected_node> connection;
  /// Why it failed.
  error reason;
};

/// Takes the run's directory and looks for the state that the run begins with. Answered by `claimed_directory`; fails
/// with what `run_directory::open` fails with.
struct claim_directory {};

struct claimed_directory {
  /// The directory, as an absolute path.
  std::string path;
  /// The directory stays as it was if there is a state that must not, or cannot, be used.
  expected<starting_state> state;
  checkpoint_store store;
  /// Empty, or what users must be warned of.
  std::string warning;
};

/// Takes the run's directory if a driver that has ended left a run in it whose workers may live, with a greater claim.
/// Answered by `directory_taken_over`; fails with what `run_directory::open` fails with.
struct take_over_directory {};

struct directory_taken_over {
  /// Nothing if there is no such run. Then the directory is not taken.
  std::optional<run_journal> journal;
  claimed_directory directory;
  /// Empty, or why that run cannot be taken over.
  std::string refusal;
  /// The run whose journal is in the directory, if it is not taken over.
  std::optional<run_proof> predecessor;
};

/// None of the workers lives: gives the directory up, for a run with this id and secret. Answered by nothing.
struct release_directory {
  run_id run;
  std::string secret;
};

/// Answered when it is on the device. Fails with what `control_journal::write` fails with.
struct write_journal {
  run_journal content;
};

/// Looks for the latest checkpoint again, and forgets metrics after its step. Answered by `starting_state`.
struct find_state {};

/// Asks where workers on this host stream their checkpoint parts to. Answered by `HOST:PORT`; empty if they write to
/// the directory themselves.
struct part_address_request {
  std::string host;
};

/// Answered when they are in the file, or wait for a disk that does not take them.
struct append_metrics {
  metrics_batch batch;
  /// The process of the worker that sent it.
  std::uint32_t pid = 0;
};

/// Appends to events.jsonl. Events from before the directory is claimed wait for it. Not answered.
struct append_event {
  std::chrono::system_clock::time_point when;
  nlohmann::ordered_json what;
};

/// Writes a worker's lines to its log, and shows them. Answered when they are in the log.
struct append_output {
  worker_output output;
  rank_id rank;
};

/// Asks the trainer what the run does. Answered at once by `run_condition`.
struct condition_question {};

/// A line that another process sent to the run's control port. From a thread of the port's to the control desk.
struct control_line {
  control_port::connection from = 0;
  std::string text;
};

/// The run is over. From the actor that writes its files to the control desk.
struct run_over {
  run_result result;
};

/// A notice about the files, or from the control desk, for users.
struct file_notice {
  severity how = severity::warning;
  std::string text;
};

/// Completes and writes the result, and gives the directory up. Answered by `finished_run`, also if no directory was
/// claimed.
struct finish_run {
  run_result result;
  /// Whether the directory is another driver's by now: nothing is written.
  bool is_superseded = false;
};

struct finished_run {
  run_result result;
  /// Why `result.json` could not be written; code `none` if it was.
  error write_error;
};

} // namespace troupe::actors

CAF_BEGIN_TYPE_ID_BLOCK(troupe_local, caf::first_custom_type_id + 1180)

CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::driver_down))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::node_down))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::node_dialled))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::claim_directory))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::claimed_directory))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::find_state))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::starting_state))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::part_address_request))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::append_metrics))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::append_output))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::finish_run))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::finished_run))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::launch_outcome))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::file_notice))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::output_waiting))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::take_over_directory))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::directory_taken_over))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::release_directory))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::write_journal))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::process_ended))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::program_searched))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::append_event))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::condition_question))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::run_condition))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::control_line))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::run_over))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::nodes_found))
CAF_ADD_TYPE_ID(troupe_local, (troupe::actors::keeper_down))

CAF_END_TYPE_ID_BLOCK(troupe_local)

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::driver_down)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::node_down)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::node_dialled)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::claim_directory)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::claimed_directory)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::find_state)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::starting_state)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::part_address_request)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::append_metrics)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::append_output)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::finish_run)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::finished_run)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::launch_outcome)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::file_notice)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::output_waiting)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::take_over_directory)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::directory_taken_over)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::release_directory)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::write_journal)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::process_ended)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::program_searched)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::append_event)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::condition_question)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::run_condition)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::control_line)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::run_over)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::nodes_found)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(troupe::actors::keeper_down)
