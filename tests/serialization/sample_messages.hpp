#pragma once

#include <troupe/messages.hpp>
#include <troupe/result.hpp>

#include <string>

namespace troupe {

inline const auto sample_run = run_id{"0123456789abcdef0123456789abcdef"};

inline worker_info sample_worker() {
  return {worker_id{3}, rank_id{2}, "host-a", "10.0.0.7:4000", 4711};
}

inline failure_record sample_failure() {
  failure_record result;
  result.worker = {3};
  result.pid = 4711;
  result.rank = {2};
  result.generation = {7};
  result.step = {41};
  result.host = "host-a";
  result.reason = {errc::worker_lost, "it ended"};
  result.consequence = true;
  result.last_lines = {"last", "lines"};
  return result;
}

inline generation_record sample_generation() {
  generation_record result;
  result.run = sample_run;
  result.generation = {8};
  result.attempt = 2;
  result.workers = 3;
  result.commit_point = {41};
  result.steps_redone = 1;
  result.interrupted_step = true;
  result.pause_seconds = 0.0625;
  result.reason = "worker 3 (rank 2) ended";
  result.members = {sample_worker()};
  return result;
}

inline kept_checkpoint sample_kept() {
  return {{400}, "/runs/digits/checkpoints/step-00000400", {{"accuracy", 0.75}}, 0.75};
}

inline run_result sample_result() {
  run_result result;
  result.programs = {{{1}, {50}, "c0ffee", "abcd", R"({"libc.version":"2.36"})"}};
  result.loaded_from = "/runs/other/checkpoints/step-00000050";
  result.run = sample_run;
  result.name = "digits";
  result.status = run_status::stopped;
  result.steps = 500;
  result.metrics = {{"accuracy", 0.75}, {"loss", -1.5e+30}};
  result.state_sha256 = std::string(64, 'a');
  result.latest_checkpoint = "/runs/digits/checkpoints/step-00000500";
  result.metrics_from = {{"accuracy", 490}, {"loss", 500}};
  result.checkpoints = {sample_kept()};
  result.best_checkpoint = sample_kept();
  result.due_checkpoints = {5, 3, 1};
  result.path = "/runs/digits";
  result.reason = {errc::stopped, "stopped on request"};
  result.failures = {sample_failure()};
  result.generations = {sample_generation()};
  result.restarts = 2;
  result.workers = {sample_worker()};
  result.exact = false;
  result.resumed_from_step = 250;
  result.seconds_to_first_step = 0.125;
  result.mirror = {"rclone:s3:bucket/digits", {300, 400}, 3, 2, {errc::timed_out, "the checkpoint of step 500"}};
  result.seconds_total = 8.5;
  result.goodput = {8.5, 4.25, 450, 3, {0.5, 0.25, 0.75, 0.125, 1.5, 0.375, 0.0625, 0.875, 1.0}};
  return result;
}

inline group_place sample_place() {
  group_place result;
  result.generation = {7};
  result.attempt = 2;
  result.reason = "worker 3 (rank 2) ended";
  result.rank = {2};
  result.world_size = 4;
  result.local_rank = 1;
  result.local_world_size = 2;
  result.node_rank = 1;
  result.transport = transport_kind::tcp;
  result.nodes = {{1, 2}, {3, 2}};
  result.data_address = "10.0.0.7";
  result.host_address = "host-a.example";
  result.part_stream = "10.0.0.1:4001";
  return result;
}

inline begin_training sample_begin() {
  begin_training result;
  result.run = sample_run;
  result.worker = {3};
  result.place = sample_place();
  result.earlier_evaluations = {{{0.5, -2.0}, {0.25}}};
  result.settings.function = "train";
  result.settings.name = "digits";
  result.settings.directory = "/runs/digits";
  result.settings.seed = 0xfedcba9876543210;
  result.settings.shards = 24;
  result.settings.configuration = R"({"lr":0.5})";
  result.settings.options = R"({"text":"/data"})";
  result.settings.steps = 1000;
  result.settings.stop_after = 900;
  result.resume.checkpoint = "/runs/digits/checkpoints/step-00000250";
  result.resume.restore_step = true;
  result.resume.step = {250};
  result.checkpoints.every_steps = 100;
  result.checkpoints.max_in_flight = 3;
  result.checkpoints.sync = checkpoint_sync::stream;
  result.checkpoints.reuse_unchanged = false;
  result.checkpoints.may_skip = false;
  result.resume.load = {true, true, {{"old", "new"}}, true};
  result.resume.is_finished = true;
  result.resume.run_time_us = 8'500'000;
  result.settings.fast_reduction = true;
  result.settings.keep_ledger = true;
  result.settings.driver_ends_waits = true;
  result.settings.encrypt_data_plane = false;
  result.settings.end_on_not_finite = true;
  result.settings.answer_timeout_ms = 2'400;
  result.settings.ports = port_range{28'400, 28'499};
  result.settings.check_every_step = true;
  result.settings.verify_determinism = 25;
  result.settings.collective_timeout_ms = 300'000;
  result.device.gpus = 0.5;
  result.device.gradients = gpu_gradients::by_host;
  return result;
}

inline member_place sample_member_place() {
  member_place result;
  result.place = sample_place();
  result.commit_point = {42};
  result.commands_agreed = 5;
  result.evaluations = 3;
  result.evaluation_source = rank_id{2};
  result.joiners = {{0}, {3}};
  result.comparison = state_comparison::whole;
  return result;
}

inline staging_place sample_staging_place() {
  return {9, {7}, {5}, 4, 2, transport_kind::hierarchical, {{1, 4}, {3, 1}, {1, 1}}, "10.0.0.2"};
}

inline regroup_report sample_report() {
  regroup_report result;
  result.run = sample_run;
  result.generation = {7};
  result.worker = {3};
  result.number = 6;
  // The first alternative of a variant says least of itself.
  result.position = worker_position::in_step{{{41}, 5, 2}, true};
  result.reason = {errc::aborted, "lost rank 1"};
  result.unreachable = {rank_id{1}, rank_id{4}};
  return result;
}

inline worker_finished sample_finished() {
  worker_finished result;
  result.run = sample_run;
  result.generation = {7};
  result.worker = {3};
  result.step = {41};
  result.reason = {errc::damaged, "what, where, and what to do"};
  result.stopped = true;
  result.needs_restart = true;
  result.state_sha256 = std::string(64, 'a');
  return result;
}

inline worker_beat sample_beat() {
  return {sample_run, {3}, {7}, {41}, 0xfedcba9876543210, activity_kind::collective};
}

inline checkpoint_part sample_part() {
  checkpoint_part result;
  result.run = sample_run;
  result.generation = {7};
  result.step = {100};
  result.attempt = 2;
  result.rank = {1};
  result.world_size = 4;
  result.report = {1, "part-0001.bin", 12288, {{5, 6, 0xffffffffffffffff, true}}};
  result.reason = {errc::io_error, "no space left"};
  result.tensors = {{"w", dtype::bf16, {3, 1001}}};
  result.metrics = {{"loss", 0.5}};
  result.values_json = R"({"note":"héllo"})";
  result.finishes_run = true;
  return result;
}

/// Hands every message that has a type id to `visit(name, sample)`, with every field away from its default. The names
/// are those of the stored bytes.
template <class Visitor>
void for_each_message(Visitor visit) {
  auto reason = error{errc::damaged, "what, where, and what to do"};
  visit("error", reason);
  visit("offer_request",
        offer_request{sample_run, 12, run_proof{sample_run, std::string(64, '5')},
                      waiting_run{{1'700'000'000'123, sample_run}, "digits", {2, 0.5, 1 << 30, {{"licence", 1}}}}});
  visit("node_offer", node_offer{"host-a",
                                 "10.0.0.7:4000",
                                 4711,
                                 {16, 2, std::uint64_t{64} << 30, {{"licence", 3}}},
                                 {32, 4, std::uint64_t{128} << 30, {{"licence", 4}}},
                                 "run words has 16 CPUs",
                                 {{"zone", "a"}}});
  visit("node_report", node_report{"host-a",
                                   "1.2",
                                   12,
                                   4711,
                                   node_phase::drained,
                                   {16, 2, std::uint64_t{64} << 30, {{"licence", 3}}},
                                   {8, 1, std::uint64_t{32} << 30, {{"licence", 2}}},
                                   {{"zone", "a"}},
                                   {{"0123", "digits", 2}},
                                   1'800'000'000});
  visit("node_question", node_question{});
  visit("drain_node", drain_node{600'000});
  visit("resume_node", resume_node{});
  visit("lease_request", lease_request{{1'700'000'000'123, sample_run},
                                       "digits",
                                       {4, 1, std::uint64_t{2} << 30, {{"licence", 2}}},
                                       run_proof{sample_run, std::string(64, '5')}});
  visit("open_run", open_run{sample_run,
                             "digits",
                             "/opt/train",
                             "c0ffee",
                             std::string(64, '5'),
                             1'200,
                             60'000,
                             run_proof{sample_run, std::string(64, '5')},
                             {6, "beef"}});
  visit("adopt_run", adopt_run{sample_run, std::string(64, '5'), {7, "c0ffee"}});
  visit("run_claim", run_claim{6, "beef"});
  visit("claim_run", claim_run{sample_run, std::string(64, '5'), {7, "c0ffee"}});
  visit("run_superseded", run_superseded{sample_run});
  visit("run_claimed", run_claimed{sample_run, {{sample_run, {3}, {7}, {250}, 11, activity_kind::collective}}});
  visit("run_opened", run_opened{sample_run, "/opt/train"});
  visit("start_workers", start_workers{sample_run,
                                       {"", "--fast"},
                                       {{worker_id{3}, {{"RANK", "2"}, {"WORLD_SIZE", "4"}}, 0.25}},
                                       std::string(64, '5'),
                                       {6, "beef"},
                                       {2, 0.25, 4096, {{"licence", 1}}}});
  visit("workers_started", workers_started{sample_run, {4711, 4712}});
  visit("keep_processes", keep_processes{sample_run, std::string(32, '7'), std::string(64, '5'), {6, "beef"}});
  visit("processes_ended", processes_ended{"10.0.0.7:4000", 3, "digits"});
  visit("end_run", end_run{sample_run, std::string(64, '5'), {6, "beef"}});
  visit("join_request", join_request{sample_run, {3}, "aa"});
  visit("join_challenge", join_challenge{"bb", "cc"});
  visit("join_proof", join_proof{sample_run, {3}, "dd"});
  visit("worker_ended",
        worker_ended{sample_run, {3}, -137, "killed by signal 9 (SIGKILL)", {"last", "lines"}, true, step_id{119}});
  visit("worker_output", worker_output{sample_run, {3}, 8, {"a line", "\xff\x01"}});
  visit("worker_ready", worker_ready{sample_run, {3}, 4711, "host-a", "c0ffee", R"({"cpu":"x86-64-v3"})"});
  visit("run_plan",
        run_plan{sample_run, {7}, {3}, 1000, 64, 1797, "digits 1797", "w f32 [3, 4]", 2, {{0.5, -2.0}, {0.25}}, 4096});
  visit("plan_accepted", plan_accepted{{7}});
  visit("metrics_batch", metrics_batch{sample_run,
                                       {3},
                                       {2},
                                       8,
                                       {41},
                                       9,
                                       {{{40}, 1'000'000, 1'795'689'600'000'000, {{"loss", 0.5}}},
                                        {{41}, 2'000'000, 1'795'689'601'000'000, {{"loss", 0.25}}}},
                                       {{{41}, {7}, {2, 4}, 77, {3, 2, {11, 12}, 13, R"({"pieces":[]})"}}},
                                       {{{8}, {42}, 62'500}},
                                       {{40}},
                                       {{{41}, shard_id{5}, "loss", 0.125}},
                                       {{{2}, {7}, {31}, {41}, 11, 9000, 700, 50, 30, 4096, 8192, {4, 7}}}});
  visit("worker_finished", sample_finished());
  visit("regroup_report", sample_report());
  visit("worker_position::without_state", worker_position::without_state{9});
  visit("worker_position::caught_up", worker_position::caught_up{{{41}, 5, 2}, 9});
  visit("worker_position::between_steps", worker_position::between_steps{{{41}, 5, 2}});
  visit("worker_position::in_step", worker_position::in_step{{{41}, 5, 2}, true});
  visit("worker_position::elsewhere", worker_position::elsewhere{{{41}, 5, 2}});
  visit("worker_position::thrown", worker_position::thrown{{{41}, 5, 2}});
  // As above.
  visit("next_generation", next_generation{sample_staging_place()});
  visit("member_place", sample_member_place());
  visit("staging_place", sample_staging_place());
  visit("loop_completed", loop_completed{{{0.5}, {-2.0, 1.0}}});
  visit("released", released{});
  visit("save_and_leave", save_and_leave{reason, {41}});
  visit("begin_training", sample_begin());
  visit("control_command", control_command{sample_run, 5, stage_command{{7}, {3, 1}, transport_kind::hierarchical, 3}});
  visit("stop_command", stop_command{});
  visit("checkpoint_command", checkpoint_command{});
  visit("regroup_command", regroup_command{{7}});
  visit("stage_command", stage_command{{7}, {3, 1}, transport_kind::hierarchical, 3});
  visit("abort_training", abort_training{sample_run, {7}, reason});
  visit("release_worker", release_worker{sample_run});
  visit("activity_question", activity_question{sample_run});
  visit("activity_answer", activity_answer{"step 17, all_reduce"});
  visit("exchange_request", exchange_request{sample_run, {7}, 1, {2}, std::string("\0blob", 5), 6});
  visit("exchange_result", exchange_result{{7}, {"", "blob"}});
  visit("generation_started", generation_started{sample_run, {7}, 4});
  visit("checkpoint_part", sample_part());
  visit("checkpoint_outcome", checkpoint_outcome{{100}, "/runs/digits/checkpoints/step-00000100", reason, 4096, 0.25});
  visit("checkpoint_metadata", checkpoint_metadata{sample_run, 17, 24, 64, 2, "c0ffee", R"({"lr":0.5})", "digits 1797",
                                                   R"({"cpu":"v3"})", R"([{"last_step":50}])"});
  visit("run_result", sample_result());
  visit("run_started", run_started{sample_run, "digits", "/runs/digits", {sample_worker()}, 250});
  visit("run_progress", run_progress{sample_run, 41, 1000, 64, {{"loss", 0.5}}, {{"loss", 42}}, 1234.5, 8.25, 16.75});
  visit("checkpoint_saved", checkpoint_saved{sample_run, {100}, "/runs/digits/checkpoints/step-00000100", 4096, 0.25});
  visit("run_notice", run_notice{sample_run, true, "read me"});
  visit("fit_request", fit_request{});
  visit("stop_request", stop_request{true});
  visit("checkpoint_request", checkpoint_request{});
  visit("kill_worker", kill_worker{sample_run, {3}, "its process is stopped", std::string(64, '5'), {6, "beef"}});
  visit("worker_beat", sample_beat());
  visit("node_beat",
        node_beat{sample_run, {sample_beat()}, {{{5}, "its process is held by a debugger", silence_kind::debugged}}});
  visit("node_leaving", node_leaving{sample_run, 30'000});
  visit("node_drained", node_drained{sample_run, 30'000});
  visit("node_resumed", node_resumed{sample_run});
  visit("generation_record", sample_generation());
  visit("resize_request", resize_request{3});
  visit("pause_request", pause_request{});
  visit("resume_request", resume_request{});
  visit("caught_up", caught_up{sample_run, {3}, {7}, 9, {42}});
  visit("exchange_ended", exchange_ended{sample_run, {7}, 9});
  visit("checkpoint_skipped", checkpoint_skipped{sample_run, {100}});
  visit("storage_probe", storage_probe{sample_run, {3}, ".probe-3", "c0ffee"});
  visit("storage_view", storage_view{true, ".store", "facade"});
  visit("checkpoint_failed", checkpoint_failed{sample_run, {100}, reason});
  visit("exit_request", exit_request{sample_run, {7}, {3}, "NCCL has not come back from its abort"});
  visit("exit_granted", exit_granted{true});
  visit("worker_gone", worker_gone{sample_run, {3}, 2});
  visit("exit_withdrawn", exit_withdrawn{sample_run, {3}});
}

} // namespace troupe
