#include "trainer_fixture.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;

TEST_CASE_FIXTURE(trainer_fixture, "a worker that is killed is replaced, and the run is completed") {
  open(worker_script::waits_for_help);
  auto result = fit_and([&](const trainer_actor&) { kill(0, 1); });
  CHECK(result.status == run_status::completed);
  CHECK(result.reason == error{});
  CHECK(result.steps == 5);
  CHECK(result.restarts == 0);
  REQUIRE(result.failures.size() == 1);
  CHECK(result.failures[0].worker == worker_id{1});
  CHECK(result.failures[0].pid == 1001);
  CHECK(result.failures[0].rank == rank_id{1});
  CHECK(result.failures[0].generation == generation_id{1});
  CHECK(result.failures[0].reason.code == errc::worker_lost);
  CHECK_FALSE(result.failures[0].consequence);
  REQUIRE(result.generations.size() == 2);
  CHECK(result.generations[0].run == result.run);
  CHECK(result.generations[0].generation == generation_id{2});
  CHECK(result.generations[0].attempt == 1);
  CHECK(result.generations[0].workers == 1);
  CHECK(result.generations[0].commit_point == step_id{3});
  CHECK(says(result.generations[0].reason, "worker 1 (rank 1) ended"));
  CHECK(result.generations[1].generation == generation_id{3});
  CHECK(result.generations[1].workers == 2);
  CHECK(result.generations[1].steps_redone == 0);
  // It may have asked before the others had formed theirs.
  const auto& reason = result.generations[1].reason;
  CAPTURE(reason);
  CHECK(((says(reason, "worker 2 (rank ") && says(reason, ") joins")) || reason == "joiners wait"));
  REQUIRE(result.workers.size() == 3);
  CHECK(result.workers[2].rank == rank_id{1});
  // A joiner gets its state from the others.
  auto begun = nodes[0]->begun.all();
  REQUIRE(begun.size() == 3);
  CHECK(begun[2].worker == worker_id{2});
  CHECK(begun[2].place.generation == generation_id{});
  CHECK(begun[2].resume.checkpoint.empty());
  CHECK(is_formed(1));
  CHECK(is_formed(2));
  CHECK(stored_result()["generations"].size() == 2);
}

TEST_CASE_FIXTURE(trainer_fixture, "where nobody is to be replaced, who is left completes the run") {
  config.failure.replace_lost = false;
  open(worker_script::waits_for_others);
  config.scaling.num_workers = 3;
  auto result = fit_and([&](const trainer_actor&) { kill(0, 1); });
  CHECK(result.status == run_status::completed);
  CHECK(result.workers.size() == 3);
  REQUIRE(result.generations.size() == 1);
  CHECK(result.generations[0].workers == 2);
  CHECK(result.generations[0].steps_redone == 1);
  CHECK(result.generations[0].interrupted_step);
}

TEST_CASE_FIXTURE(trainer_fixture, "a replacement of another build is refused, and another one is started") {
  open(worker_script::waits_for_help);
  set_script(2, worker_script::other_build);
  auto result = fit_and([&](const trainer_actor&) { kill(0, 1); });
  CHECK(result.status == run_status::completed);
  REQUIRE(result.failures.size() == 2);
  CHECK(result.failures[1].worker == worker_id{2});
  CHECK(result.failures[1].reason.code == errc::program_mismatch);
  CHECK(result.workers.size() == 4);
  auto begun = nodes[0]->begun.all();
  CHECK(std::ranges::find(begun, worker_id{2}, &begin_training::worker) == begun.end());
  CHECK(nodes[0]->killed_one.all() == std::vector{worker_id{2}});
}

TEST_CASE_FIXTURE(trainer_fixture, "replacements that do not come up are given up after three") {
  open(worker_script::waits_for_others);
  for (std::uint32_t worker = 2; worker < 9; ++worker)
    set_script(worker, worker_script::stillborn);
  set_script(0, worker_script::until_stopped);
  auto result = fit_and([&](const trainer_actor& trainer) {
    kill(0, 1);
    CHECK(is_said("3 workers in a row ended before they had joined"));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.failures.size() == 4);
  CHECK(nodes[0]->started.all().size() + nodes[1]->started.all().size() == 5);
}

TEST_CASE_FIXTURE(trainer_fixture, "an exception is tried once more by the others, and the run is completed") {
  open(worker_script::waits_for_help);
  set_script(1, worker_script::throws);
  auto result = fit();
  CHECK(result.status == run_status::completed);
  REQUIRE(result.failures.size() == 1);
  CHECK(result.failures[0].reason.code == errc::user_error);
  CHECK(result.workers.size() == 3);
  CHECK(result.restarts == 0);
}

TEST_CASE_FIXTURE(trainer_fixture, "an exception that comes again on the same step is the user's, and ends the run") {
  open(worker_script::throws);
  auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(result.reason.code == errc::user_error);
  CHECK(says(result.reason.message, "after step 3: out of range"));
  CHECK(result.restarts == 0);
}

TEST_CASE_FIXTURE(trainer_fixture,
                  "the state of a run that fails is saved while somebody has it, and the next run has it") {
  open(worker_script::waits_for_others);
  set_script(1, worker_script::throws);
  config.scaling.num_workers = 3;
  config.failure.max_failures = 0;
  auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(result.reason.code == errc::user_error);
  CHECK(result.failures.size() == 3);
  CHECK(result.latest_checkpoint == (root() / "checkpoints" / "step-00000003").string());
  CHECK(result.due_checkpoints.taken == 1);
  auto stored = serialization::checkpoint::open(result.latest_checkpoint);
  REQUIRE(stored);
  CHECK(stored->verify());
  CHECK(is_said("saves the state of step 3 before the run ends"));
  for (std::uint32_t worker = 0; worker < 3; ++worker)
    set_script(worker, worker_script::trains);
  CHECK(fit().resumed_from_step == 3);
}

TEST_CASE_FIXTURE(trainer_fixture, "when nobody is left the run starts again from its latest checkpoint") {
  open(worker_script::trains);
  config.scaling.num_workers = 1;
  auto first = fit();
  config.run.steps = 10;
  set_script(0, worker_script::waits_for_others);
  auto result = fit_and([&](const trainer_actor&) { kill(0, 0); });
  CHECK(result.status == run_status::completed);
  CHECK(result.steps == 10);
  CHECK(result.restarts == 1);
  REQUIRE(result.generations.size() == 1);
  CHECK(result.generations[0].attempt == 2);
  CHECK(result.generations[0].commit_point == step_id{5});
  CHECK(result.generations[0].steps_redone == 3);
  CHECK(says(result.generations[0].reason, "worker 0 (rank 0) ended"));
  CHECK(result.failures.size() == 1);
  auto begun = nodes[0]->begun.all().back();
  CHECK(begun.worker == worker_id{1});
  CHECK(begun.place.attempt == 2);
  CHECK(begun.place.generation == generation_id{2});
  CHECK_FALSE(begun.place.reason.empty());
  CHECK(begun.resume.checkpoint == first.latest_checkpoint);
  CHECK(begun.resume.step == step_id{5});
  CHECK(is_said("starts again from its latest checkpoint"));
}

TEST_CASE_FIXTURE(trainer_fixture,
                  "each worker gets a GPU, its replacement the one that is free, and so does a second attempt") {
  open(worker_script::waits_for_help);
  capacity = {4, 2};
  config.scaling.use_gpu = true;
  config.scaling.resources_per_worker.gpus = 0.5;
  config.scaling.placement = placement_strategy::strict_pack;
  config.scaling.num_workers = 2;
  auto result = fit_and([&](const trainer_actor&) { kill(0, 1); });
  CHECK(result.status == run_status::completed);
  auto started = nodes[0]->started.all();
  REQUIRE(started.size() == 3);
  CHECK(started[0].devices == std::vector<std::string>{"0"});
  CHECK(started[1].devices == std::vector<std::string>{"1"});
  CHECK(started[2].devices == std::vector<std::string>{"1"});
  for (const auto& each : nodes[0]->begun.all())
    CHECK(each.device.gpus == 0.5);
}

TEST_CASE_FIXTURE(trainer_fixture, "a run that starts again does so on the GPU that its dead worker had") {
  open(worker_script::trains);
  capacity = {4, 1};
  config.scaling.use_gpu = true;
  config.scaling.num_workers = 1;
  std::ignore = fit();
  config.run.steps = 10;
  set_script(0, worker_script::waits_for_others);
  auto result = fit_and([&](const trainer_actor&) { kill(0, 0); });
  CHECK(result.status == run_status::completed);
  CHECK(result.restarts == 1);
  for (const auto& each : nodes[0]->started.all())
    CHECK(each.devices == std::vector<std::string>{"0"});
}

TEST_CASE_FIXTURE(trainer_fixture, "a run on GPUs starts again on a node that was lost and has come back") {
  open(worker_script::trains);
  nodes.pop_back();
  config.cluster.nodes.pop_back();
  capacity = {4, 1};
  config.scaling.use_gpu = true;
  config.scaling.num_workers = 1;
  std::ignore = fit();
  config.run.steps = 10;
  set_script(0, worker_script::waits_for_others);
  auto result = fit_and([&](const trainer_actor&) { caf::anon_send_exit(nodes[0]->node(), caf::exit_reason::kill); });
  CHECK(result.status == run_status::completed);
  CHECK(result.steps == 10);
  CHECK(result.restarts == 1);
}

TEST_CASE_FIXTURE(trainer_fixture, "a run that cannot start on one of its nodes ends once, and does not start again") {
  open(worker_script::silent);
  config.scaling.placement = placement_strategy::spread;
  nodes[1]->start_error = {errc::io_error, "no more processes"};
  auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(says(result.reason.message, "no more processes"));
  CHECK(result.restarts == 0);
  CHECK(nodes[0]->started.all().size() == 1);
  CHECK(stored_result().at("restarts") == 0);
}

TEST_CASE_FIXTURE(trainer_fixture,
                  "more GPUs than there are fail at once, with what is asked for and what is offered") {
  open(worker_script::trains);
  config.scaling.use_gpu = true;
  config.scaling.num_workers = 4;
  auto reason = fit().reason;
  CHECK(reason.code == errc::unsatisfiable);
  CAPTURE(reason.message);
  CHECK(says(reason.message, "4 workers with 1 GPU each need 4 GPUs; the nodes offer"));
  CHECK(says(reason.message, "0 GPUs"));
  CHECK(nodes[0]->opened.all().empty());
}

TEST_CASE_FIXTURE(trainer_fixture, "a worker that is killed before it has joined has the run started again") {
  open(worker_script::trains);
  set_script(1, worker_script::silent);
  auto result = fit_and_at_once([&](const trainer_actor&) {
    nodes[0]->started.wait_for(2);
    kill(0, 1);
  });
  CHECK(result.status == run_status::completed);
  CHECK(result.restarts == 1);
  CHECK(result.failures.size() == 1);
}
