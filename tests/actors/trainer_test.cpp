#include "trainer_fixture.hpp"
#include <nlohmann/json.hpp>

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;
using serialization::read_file;
namespace fs = std::filesystem;

TEST_CASE_FIXTURE(trainer_fixture, "a whole run on two nodes: its result, its files, its events") {
  open(worker_script::trains);
  config.scaling.num_workers = 4;
  config.scaling.placement = placement_strategy::spread;
  auto result = fit();
  CHECK(result.status == run_status::completed);
  CHECK(result.reason == error{});
  CHECK(result.failures.empty());
  CHECK(result.generations.empty());
  CHECK(result.restarts == 0);
  CHECK(result.steps == 5);
  CHECK(result.metrics == metric_map{{"loss", 0.2}});
  CHECK(result.exact);
  CHECK(result.run.value.size() == 32);
  CHECK(result.name == "digits");
  CHECK(result.path == root().string());
  CHECK(result.latest_checkpoint == (root() / "checkpoints" / "step-00000005").string());
  CHECK(result.metrics_from == metric_steps{{"loss", 5}});
  CHECK(result.due_checkpoints == checkpoint_counts{1, 0, 0});
  REQUIRE(result.checkpoints.size() == 1);
  CHECK(result.checkpoints[0].step == step_id{5});
  CHECK(result.checkpoints[0].path == result.latest_checkpoint);
  CHECK_FALSE(result.best_checkpoint);
  REQUIRE(result.workers.size() == 4);
  for (std::uint32_t i = 0; i < 4; ++i)
    CHECK(result.workers[i] ==
          worker_info{{i}, {i}, "host of " + std::to_string(i), i < 2 ? "10.0.0.0:4000" : "10.0.0.1:4000", 1000 + i});
  CHECK(result.seconds_to_first_step > 0);
  CHECK(result.seconds_total >= result.seconds_to_first_step);
  auto state = serialization::sample_state{{{"w", dtype::f32, {100}}}, 7};
  CHECK(result.state_sha256 == serialization::state_sha256(state.views(), "{}"));
  auto stored = serialization::open_latest(root() / "checkpoints");
  REQUIRE(stored);
  CHECK(serialization::state_sha256(stored->found).value() == result.state_sha256);
  CHECK(stored->found.content().program_build_id == "c0ffee");
  CHECK(stored->found.content().configuration_json == R"({"lr":0.5})");
  CHECK(stored->found.content().numerics_fingerprint_json == R"({"cpu":"v3"})");
  CHECK(stored->found.content().data_fingerprint == "digits");
  CHECK(stored->found.content().global_batch == 64);

  CHECK(read_file(root() / "result.json") == to_json(result));
  CHECK(lines_of("metrics.jsonl") == 20);
  CHECK(lines_of("ledger.jsonl") == 20);
  auto described = nlohmann::json::parse(read_file(root() / "run.json"));
  CHECK(described["run"] == result.run.value);
  CHECK(described["function"] == "train");
  CHECK(described["workers"] == "4");
  CHECK(described["config"] == config.config);
  CHECK(read_file(root() / "logs" / "worker-3.log") == "hello from rank 3\n");
  CHECK(std::ranges::count(shown.wait_for(4), "3: hello from rank 3") == 1);

  auto started = first_event<run_started>();
  REQUIRE(started);
  CHECK(started->run == result.run);
  CHECK(started->workers == result.workers);
  auto saved = first_event<checkpoint_saved>();
  REQUIRE(saved);
  CHECK(saved->path == result.latest_checkpoint);
  auto progress = first_event<run_progress>([](const run_progress& x) { return x.step == 5; });
  REQUIRE(progress);
  CHECK(progress->steps == 5);

  auto begun = nodes[1]->begun.wait_for(2);
  REQUIRE(begun.size() == 2);
  CHECK(begun[0].place.generation == generation_id{1});
  CHECK(begun[0].place.attempt == 1);
  CHECK(begun[0].place.reason.empty());
  CHECK(begun[0].place.world_size == 4);
  CHECK(begun[0].place.local_world_size == 2);
  CHECK(begun[0].place.node_rank == 1);
  CHECK(begun[0].place.transport == transport_kind::hierarchical);
  CHECK(begun[0].place.nodes == std::vector<node_ranks>{{0, 2}, {1, 2}});
  CHECK(begun[0].place.data_address == "10.0.0.1");
  for (const auto& launched : nodes[1]->started.all()) {
    CHECK(launched.environment.at("WORLD_SIZE") == "4");
    CHECK(launched.environment.at("RANK") == std::to_string(launched.worker.value));
    CHECK(launched.environment.at("GROUP_RANK") == "1");
    CHECK(launched.environment.at("MASTER_ADDR") == "10.0.0.0");
  }
  CHECK(nodes[0]->closed.wait_for(1) == std::vector{result.run});
  CHECK(nodes[0]->opened.all().at(0).heartbeat_timeout_ms == 1200);
}

TEST_CASE_FIXTURE(trainer_fixture, "one worker needs no data plane") {
  open(worker_script::trains);
  config.scaling.num_workers = 1;
  CHECK(fit().status == run_status::completed);
  CHECK(nodes[0]->begun.all().at(0).place.transport == transport_kind::self);
  CHECK(nodes[1]->started.all().empty());
}

TEST_CASE_FIXTURE(trainer_fixture, "a run goes on where its checkpoint stands, and its files with it") {
  open(worker_script::trains);
  auto first = fit();
  config.run.steps = 8;
  config.scaling.num_workers = 3;
  config.run.resume = resume_mode::required;
  auto second = fit();
  INFO(second.reason.message);
  CHECK(second.status == run_status::completed);
  CHECK(second.resumed_from_step == 5);
  CHECK(second.steps == 8);
  CHECK(second.run != first.run);
  CHECK(lines_of("metrics.jsonl") == 5 * 2 + 3 * 3);
  auto begun = nodes[0]->begun.all().back();
  CHECK(begun.resume.restore_step);
  CHECK(begun.resume.checkpoint == first.latest_checkpoint);
}

TEST_CASE_FIXTURE(trainer_fixture, "a run of another configuration does not go on, and starts no process") {
  open(worker_script::trains);
  CHECK(fit().status == run_status::completed);
  auto before = nodes[0]->started.all().size();
  config.config["lr"] = 0.25;
  auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(result.reason.code == errc::mismatch);
  CHECK(says(result.reason.message, R"({"lr":0.25} now, {"lr":0.5} in the checkpoint)"));
  CHECK(nodes[0]->started.all().size() == before);
  CHECK(lines_of("metrics.jsonl") == 10);
}

TEST_CASE_FIXTURE(trainer_fixture, "a new run begins with the state of another, at its own first step") {
  open(worker_script::trains);
  auto first = fit();
  config.run.name = "other";
  config.config["lr"] = 0.25;
  config.load_checkpoint = first.latest_checkpoint;
  auto second = fit();
  CHECK(second.status == run_status::completed);
  CHECK(second.resumed_from_step == 0);
  auto begun = nodes[0]->begun.all().back();
  CHECK(begun.resume.checkpoint == first.latest_checkpoint);
  CHECK_FALSE(begun.resume.restore_step);
}

TEST_CASE_FIXTURE(trainer_fixture, "a run says that it resumes, and when nothing was left to do") {
  open(worker_script::trains);
  const auto first = fit();
  config.run.steps = 8;
  CHECK(fit().status == run_status::completed);
  CHECK(first_event<run_notice>(
      [&](const run_notice& x) { return x.text == "resumes from step 5 in " + first.latest_checkpoint; }));
  CHECK(fit().status == run_status::completed);
  CHECK(first_event<run_notice>([&](const run_notice& x) {
    return x.warning && says(x.text, "nothing was left to do: the run in " + first.path + " has done step 8") &&
           says(x.text, "--resume restart");
  }));
}

TEST_CASE_FIXTURE(trainer_fixture, "a run is begun anew on request, and the old one is moved aside") {
  open(worker_script::trains);
  const auto first = fit();
  config.run.resume = resume_mode::restart;
  config.config["lr"] = 0.25;
  const auto second = fit();
  CHECK(second.status == run_status::completed);
  CHECK(second.resumed_from_step == 0);
  CHECK(second.path == first.path);
  CHECK(nlohmann::json::parse(read_file(first.path + ".1/result.json"))["run"] == first.run.value);
  CHECK(first_event<run_notice>([&](const run_notice& x) {
    return x.text == "the earlier run in " + first.path + " is now " + first.path + ".1";
  }));
  CHECK(std::filesystem::canonical(root().parent_path() / "latest") == std::filesystem::canonical(root()));
}

TEST_CASE_FIXTURE(trainer_fixture, "what happens is in the run's events, over all its processes") {
  open(worker_script::trains);
  CHECK(fit().status == run_status::completed);
  config.run.steps = 8;
  CHECK(fit().status == run_status::completed);
  std::vector<std::string> kinds;
  auto in = std::ifstream{root() / "events.jsonl"};
  for (std::string line; std::getline(in, line);) {
    const auto event = nlohmann::json::parse(line);
    CHECK(event["time"].get<std::string>().ends_with("Z"));
    if (event["event"] == "checkpoint")
      CHECK(event["bytes"] == 400);
    if (event["event"] != "warning")
      kinds.push_back(event["event"]);
  }
  CHECK(kinds == std::vector<std::string>{"started", "checkpoint", "ended", "started", "checkpoint", "ended"});
}

TEST_CASE_FIXTURE(trainer_fixture, "resume 'required' fails without a checkpoint") {
  open(worker_script::trains);
  config.run.resume = resume_mode::required;
  auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(result.reason.code == errc::not_found);
  CHECK(nodes[0]->started.all().empty());
}

TEST_CASE_FIXTURE(trainer_fixture,
                  "the user's error ends the run with rank, step and text; the others are consequences") {
  config.failure.max_failures = 0;
  open(worker_script::waits_for_others);
  config.scaling.num_workers = 4;
  for (auto& node : nodes)
    node->set_script({2}, worker_script::throws);
  auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(result.exit_code() == 1);
  CHECK(result.reason == error{errc::user_error, "rank 2 after step 3: out of range"});
  REQUIRE(result.failures.size() == 4);
  CHECK(result.failures[0].rank.value == 2);
  CHECK(result.failures[0].step.value == 4);
  CHECK_FALSE(result.failures[0].consequence);
  for (std::size_t i = 1; i < 4; ++i) {
    CHECK(result.failures[i].consequence);
    CHECK(result.failures[i].reason.code == errc::aborted);
  }
  CHECK(result.state_sha256.empty());
  CHECK(result.steps == 3);
  CHECK(stored_result()["status"] == "failed");
  CHECK(stored_result()["error"]["code"] == "user_error");
  auto notice = first_event<run_notice>([](const run_notice& x) { return x.warning; });
  REQUIRE(notice);
  // The reason stands in the result, which the program shows.
  CHECK(notice->text == "worker 2 (rank 2) failed, which ends the run");
}

TEST_CASE_FIXTURE(trainer_fixture, "a worker that dies ends the run with its exit status and last lines") {
  config.failure.max_failures = 0;
  open(worker_script::waits_for_others);
  for (auto& node : nodes)
    node->set_script({1}, worker_script::dies);
  auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(result.reason.code == errc::worker_lost);
  CHECK(
      says(result.reason.message, "worker 1 (rank 1) on host of 1 ended after step 3: killed by signal 11 (SIGSEGV)"));
  CHECK(result.failures.at(0).last_lines == std::vector<std::string>{"its last line"});
}

TEST_CASE_FIXTURE(trainer_fixture, "a worker that does not come up ends the run with what it said") {
  open(worker_script::trains);
  for (auto& node : nodes)
    node->set_script({1}, worker_script::stillborn);
  auto result = fit();
  CHECK(result.reason.code == errc::worker_lost);
  CHECK(says(result.reason.message, "before it had joined"));
  CHECK(says(result.reason.message, "libfoo.so: not found"));
}

TEST_CASE_FIXTURE(trainer_fixture, "a worker that does not know the secret is not let in") {
  open(worker_script::trains);
  for (auto& node : nodes)
    node->set_script({0}, worker_script::impostor);
  auto result = fit();
  CHECK(result.reason.code == errc::worker_lost);
  CHECK(says(result.reason.message, "does not know the run's secret"));
}

TEST_CASE_FIXTURE(trainer_fixture, "a worker of another build ends the run") {
  open(worker_script::trains);
  for (auto& node : nodes)
    node->set_script({1}, worker_script::other_build);
  auto result = fit();
  CHECK(result.reason.code == errc::program_mismatch);
  CHECK(nodes[0]->begun.all().empty());
}

TEST_CASE_FIXTURE(trainer_fixture, "workers that do not join are tried once more") {
  open(worker_script::trains);
  for (auto& node : nodes)
    node->set_script({1}, worker_script::silent);
  config.run.start_timeout = std::chrono::milliseconds{500};
  auto result = fit();
  CHECK(result.status == run_status::completed);
  CHECK(result.restarts == 1);
  REQUIRE(result.failures.size() == 1);
  CHECK(says(result.failures[0].reason.message, "worker 1 (rank 1) did not join in time"));
}

TEST_CASE_FIXTURE(trainer_fixture, "workers that never join are named when the limit is reached") {
  open(worker_script::silent);
  config.run.start_timeout = std::chrono::milliseconds{200};
  auto result = fit();
  CHECK(result.reason.code == errc::timed_out);
  CHECK(says(result.reason.message, "worker 3 (rank 1) did not join in time"));
}

TEST_CASE_FIXTURE(trainer_fixture, "workers that disagree about the run are told how") {
  open(worker_script::trains);
  for (auto& node : nodes)
    node->set_script({1}, worker_script::disagrees);
  auto result = fit();
  CHECK(result.reason.code == errc::mismatch);
  CHECK(says(result.reason.message, "batch size: 64 on worker 0 (rank 0), 65 on worker 1 (rank 1)"));
  REQUIRE(result.failures.size() == 3);
  CHECK(result.failures[1].consequence);
  CHECK(result.failures[2].consequence);
}

TEST_CASE_FIXTURE(trainer_fixture, "a stop ends the run with a checkpoint of what was reached") {
  open(worker_script::until_stopped);
  auto result = fit_and([&](const trainer_actor& trainer) { CHECK(ask<void>(trainer, stop_request{})); });
  CHECK(result.status == run_status::stopped);
  CHECK(result.exit_code() == 0);
  CHECK(result.reason == error{});
  CHECK_FALSE(result.state_sha256.empty());
  CHECK(fs::exists(result.latest_checkpoint));
  CHECK(stored_result()["status"] == "stopped");
}

TEST_CASE_FIXTURE(trainer_fixture, "a run whose time is over is stopped, and says so") {
  open(worker_script::until_stopped);
  config.run.time_limit = std::chrono::milliseconds{100};
  auto result = fit();
  CHECK(result.status == run_status::stopped);
  CHECK(result.reason.code == errc::timed_out);
  CHECK(says(result.reason.message, "run.time_limit, 0.1 s"));
  CHECK(result.exit_code() == exit_out_of_time);
}

TEST_CASE_FIXTURE(trainer_fixture, "other processes hear what the run does, steer it, and hear its end") {
  open(worker_script::until_stopped);
  const auto peer = std::make_shared<fake_connection>();
  open_control_port = [&](const fs::path& directory) -> expected<std::unique_ptr<control_port>> {
    CHECK(directory == root());
    return std::make_unique<fake_control_port>(peer);
  };
  auto result = fit_and([&](const trainer_actor&) {
    const auto status = peer->ask(R"({"request":"status"})")["status"];
    CHECK(status["state"] == "running");
    CHECK(status["name"] == "digits");
    CHECK(status["workers"].size() == 2);
    CHECK(status["driver"]["pid"] == ::getpid());
    CHECK(peer->ask("nonsense")["error"]["code"] == "invalid_argument");
    CHECK(says(peer->ask(R"({"request":"resize","workers":1000})")["error"]["message"], "1000"));
    CHECK(peer->ask(R"({"request":"watch"})")["answer"] == "watch");
    CHECK(peer->published.wait_until_any([](const auto& x) { return x["event"] == "status"; }));
    CHECK(peer->ask(R"({"request":"stop"})")["answer"] == "stop");
  });
  CHECK(result.status == run_status::stopped);
  CHECK(is_said("asked from another terminal: stop"));
  const auto heard = peer->published.all();
  REQUIRE_FALSE(heard.empty());
  CHECK(heard.back()["event"] == "ended");
  CHECK(heard.back()["status"]["state"] == "stopped");
  CHECK(heard.back()["status"]["latest_checkpoint"] == result.latest_checkpoint);
  CHECK(std::ranges::any_of(heard, [](const auto& x) { return x["event"] == "checkpoint"; }));
  // The port is closed before the directory is given up.
  CHECK_FALSE(peer->on_line);
}

TEST_CASE_FIXTURE(trainer_fixture, "a run goes on where nothing can listen, and says so") {
  open(worker_script::trains);
  open_control_port = [](const fs::path&) -> expected<std::unique_ptr<control_port>> {
    return fail(errc::io_error, "no sockets here");
  };
  CHECK(fit().status == run_status::completed);
  CHECK(is_said("no sockets here"));
}

TEST_CASE_FIXTURE(trainer_fixture, "an immediate stop waits for nobody") {
  open(worker_script::waits_for_others);
  auto result = fit_and([&](const trainer_actor& trainer) {
    CHECK(ask<void>(trainer, stop_request{}));
    CHECK(ask<void>(trainer, stop_request{true}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.latest_checkpoint.empty());
}

TEST_CASE_FIXTURE(trainer_fixture,
                  "a trainer that is ended leaves nobody waiting, no process, and its directory to others") {
  open(worker_script::until_stopped);
  auto trainer = spawn();
  auto pending = self()->request(trainer, patience, fit_request{});
  CHECK(events->wait_until_any([](const event& x) { return std::holds_alternative<run_progress>(x); }));
  caf::anon_send_exit(trainer, caf::exit_reason::user_shutdown);
  pending.receive([](const run_result&) { FAIL_CHECK("the run has not ended"); },
                  [](const caf::error& reason) { CHECK(from_caf(reason).code == errc::aborted); });
  CHECK(has_ended(trainer));
  for (const auto& node : nodes)
    if (auto handle = node->node())
      CHECK(has_ended(handle));
  check_that_nothing_is_left();
  CHECK(run_directory::open(config.run));
}

TEST_CASE_FIXTURE(trainer_fixture, "fit is refused while a run is under way") {
  open(worker_script::until_stopped);
  auto result = fit_and([&](const trainer_actor& trainer) {
    auto second = ask<run_result>(trainer, fit_request{});
    REQUIRE_FALSE(second);
    CHECK(second.error().code == errc::already_exists);
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
}

TEST_CASE_FIXTURE(trainer_fixture, "a second trainer does not get the directory of a run that is under way") {
  open(worker_script::until_stopped);
  auto rival = trainer_fixture{};
  rival.config = config;
  rival.config.cluster.nodes.clear();
  rival.open(worker_script::trains);
  auto result = fit_and([&](const trainer_actor& trainer) {
    auto refused = rival.fit();
    CHECK(refused.status == run_status::failed);
    CHECK(refused.reason.code == errc::already_exists);
    CHECK(rival.nodes[0]->started.all().empty());
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
}

TEST_CASE_FIXTURE(trainer_fixture, "a node that is lost in training ends the run") {
  config.failure.max_failures = 0;
  open(worker_script::waits_for_others);
  config.scaling.placement = placement_strategy::spread;
  auto result = fit_and([&](const trainer_actor&) { caf::anon_send_exit(nodes[1]->node(), caf::exit_reason::kill); });
  CHECK(result.status == run_status::failed);
  CHECK(result.reason.code == errc::node_lost);
  CHECK(says(result.reason.message, "10.0.0.1:4000"));
  CHECK(result.failures.at(0).worker.value == 1);
}

TEST_CASE_FIXTURE(trainer_fixture, "a node that cannot be reached fails the run before anything is written") {
  open(worker_script::trains);
  set_connect_error("10.0.0.1:4000", {errc::unreachable, "no connection to 10.0.0.1:4000"});
  auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(result.reason == error{errc::unreachable, "no connection to 10.0.0.1:4000"});
  CHECK_FALSE(fs::exists(root()));
}

TEST_CASE_FIXTURE(trainer_fixture, "a node that is gone right after it was reached fails the run") {
  open(worker_script::trains);
  first_node_is_dead = true;
  auto result = fit();
  CHECK(result.status == run_status::failed);
  CAPTURE(result.reason.message);
  CHECK((result.reason.code == errc::unreachable || result.reason.code == errc::node_lost));
  CHECK(says(result.reason.message, "10.0.0.0:4000"));
}

TEST_CASE_FIXTURE(trainer_fixture, "a node that has not the program fails the run with its address") {
  open(worker_script::trains);
  nodes[0]->open_error = {errc::program_mismatch, "another build"};
  auto result = fit();
  CHECK(result.reason == error{errc::program_mismatch, "node 10.0.0.0:4000: another build"});
  CHECK(nodes[0]->started.all().empty());
}

TEST_CASE_FIXTURE(trainer_fixture, "a process that cannot be started fails the run with the node's address") {
  open(worker_script::trains);
  nodes[0]->start_error = {errc::io_error, "too many processes"};
  auto result = fit();
  CHECK(result.reason == error{errc::io_error, "node 10.0.0.0:4000: too many processes"});
}

TEST_CASE_FIXTURE(trainer_fixture, "what cannot be satisfied or meant fails before anything starts") {
  open(worker_script::trains);
  config.scaling.resources_per_worker.cpus = 5;
  CHECK(fit().reason.code == errc::unsatisfiable);
  config.scaling.num_workers = 0;
  CHECK(fit().reason.code == errc::invalid_argument);
  CHECK(nodes[0]->opened.all().empty());
  CHECK_FALSE(fs::exists(root()));
}

TEST_CASE_FIXTURE(trainer_fixture, "a person is told of shared CPUs and of uneven shards") {
  open(worker_script::trains);
  capacity = {1, 0};
  config.scaling.num_workers = 7;
  CHECK(fit().status == run_status::completed);
  CHECK(first_event<run_notice>([](const run_notice& x) { return says(x.text, "share 1 CPU on 10.0.0.0"); }));
  CHECK(first_event<run_notice>([](const run_notice& x) { return says(x.text, "57 %"); }));
}
