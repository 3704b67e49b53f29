#pragma once

#include "number_chain.hpp"

#include <troupe/actors/decisions/placement.hpp>
#include <troupe/error.hpp>
#include <troupe/messages.hpp>

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

namespace troupe::simulation {

/// A message that is answered, and the number by which its sender knows the answer.
template <class Message>
struct request {
  std::uint64_t number = 0;
  Message message;
};

/// What comes back. An answer to something that nobody waits for any more is dropped.
template <class Message>
struct answer {
  std::uint64_t number = 0;
  expected<Message> value;
};

/// `begin_training`, as far as the protocol goes: the place, and what the checkpoint has.
struct begin_work {
  group_place place;
  number_chain restored;
  std::vector<std::vector<std::vector<double>>> earlier_evaluations;
};

/// `checkpoint_part`, with the replica's state instead of tensors.
struct state_part {
  generation_id generation;
  rank_id rank;
  std::uint32_t world_size = 0;
  worker_id worker;
  number_chain state;
  /// The whole state, by one that saves it before it ends: it belongs to no generation.
  bool is_last_copy = false;
};

// -- between driver and nodes -----------------------------------------------------------------------------------------

struct start_process {
  actors::worker_place place;
};

struct kill_process {
  worker_id worker;
};

/// `end_run`: kills what is left of the run on a node.
struct kill_all {};

/// `node_beat`, after a silence.
struct node_speaks {};

/// `node_leaving`.
struct node_goes {};

/// What a node says to the driver that takes it over: the processes that live there.
struct node_claimed {
  std::vector<worker_beat> living;
};

/// The node has the program open, and takes workers.
struct node_opens {};

/// What the actor system tells of a lost connection.
struct connection_lost {};

// -- within the driver's process --------------------------------------------------------------------------------------

/// The store knows the run's metadata, which was sent when the plans of this generation had been accepted.
struct metadata_stored {
  generation_id generation;
};

/// Nothing of the attempt before can add to the store any more.
struct attempt_closed {
  std::uint32_t attempt = 0;
};

/// The journal is on the device.
struct journal_written {};

using packet =
    std::variant<worker_ready, request<run_plan>, request<regroup_report>, request<exchange_request>,
                 request<state_part>, caught_up, worker_finished, answer<plan_accepted>, answer<next_generation>,
                 answer<exchange_result>, answer<checkpoint_outcome>, begin_work, abort_training, control_command,
                 release_worker, start_process, kill_process, kill_all, worker_ended, node_speaks, node_goes,
                 node_opens, connection_lost, metadata_stored, attempt_closed, node_claimed, journal_written>;

/// The number of a question or an answer, if the packet is one: `number_of<request>(packet)`.
template <template <class> class Kind>
std::optional<std::uint64_t> number_of(const packet& what) {
  return std::visit(
      []<class T>(const T& x) -> std::optional<std::uint64_t> {
        if constexpr (requires { []<class Message>(const Kind<Message>&) {}(x); })
          return x.number;
        else
          return std::nullopt;
      },
      what);
}

} // namespace troupe::simulation
