#pragma once

#include <troupe/messages.hpp>
#include <troupe/result.hpp>

#include <caf/type_id.hpp>

/// Troupe's type ids are [caf::first_custom_type_id + 1000, caf::first_custom_type_id + 1200): 100 for messages, 100
/// for actor handles. A host program takes its own from elsewhere; two types of one id are a compile-time error
/// ("redefinition of type_by_id") in any file that sees both blocks. The ids are the wire format: append only.
CAF_BEGIN_TYPE_ID_BLOCK(troupe_messages, caf::first_custom_type_id + 1000)

CAF_ADD_TYPE_ID(troupe_messages, (troupe::error))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::offer_request))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::node_offer))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::open_run))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::run_opened))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::start_workers))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::workers_started))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::end_run))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::join_request))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::join_challenge))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::join_proof))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::worker_ended))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::worker_output))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::worker_ready))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::run_plan))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::plan_accepted))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::metrics_batch))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::worker_finished))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::begin_training))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::control_command))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::abort_training))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::release_worker))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::exchange_request))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::exchange_result))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::generation_started))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::checkpoint_part))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::checkpoint_outcome))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::checkpoint_facts))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::run_result))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::run_started))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::run_progress))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::checkpoint_saved))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::run_notice))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::fit_request))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::stop_request))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::checkpoint_request))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::regroup_report))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::next_generation))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::kill_worker))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::worker_beat))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::node_beat))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::node_leaving))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::generation_record))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::resize_request))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::pause_request))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::resume_request))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::newcomer_level))
CAF_ADD_TYPE_ID(troupe_messages, (troupe::exchange_ended))

CAF_END_TYPE_ID_BLOCK(troupe_messages)
