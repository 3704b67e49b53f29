#pragma once

#include "local_messages.hpp"
#include <troupe/actors/handles.hpp>

#include <chrono>

namespace troupe::actors {

/// All that the trainer's actor handles: the requests of its owner, the messages of workers and nodes (`run_control`),
/// and those of its own parts.
using trainer_interface = trainer_actor::extend<
    caf::result<void>(worker_ready, worker_actor), caf::result<plan_accepted>(run_plan),
    caf::result<next_generation>(regroup_report), caf::result<void>(caught_up), caf::result<void>(metrics_batch),
    caf::result<void>(worker_finished), caf::result<void>(worker_ended), caf::result<void>(worker_output),
    caf::result<void>(node_beat), caf::result<void>(node_leaving), caf::result<void>(node_drained),
    caf::result<void>(node_resumed), caf::result<void>(run_superseded), caf::result<void>(checkpoint_outcome),
    caf::result<void>(node_down), caf::result<void>(node_dialled), caf::result<void>(nodes_found),
    caf::result<void>(file_notice), caf::result<run_condition>(condition_question)>;

using trainer_base = trainer_interface::base;

/// How long a node may take to answer.
inline constexpr auto node_timeout = std::chrono::seconds{10};

/// How long survivors of a failure may take to report, and released workers to end.
inline constexpr auto grace_period = std::chrono::seconds{2};

} // namespace troupe::actors
