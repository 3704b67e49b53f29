#include "trainer_fixture.hpp"

#include <chrono>
#include <string>
#include <thread>

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;

TEST_CASE_FIXTURE(trainer_fixture, "a node that goes silent is given up, and its worker replaced on another") {
  open(worker_script::waits_for_help);
  config.scaling.placement = placement_strategy::spread;
  auto result = fit_and([&](const trainer_actor&) {
    nodes[1]->freeze();
    CHECK(is_said("node 10.0.0.1:4000 has said nothing for"));
    CHECK(is_formed(2, 3));
    nodes[1]->thaw();
  });
  CHECK(result.status == run_status::completed);
  REQUIRE(result.failures.size() == 1);
  CHECK(result.failures[0].reason.code == errc::node_lost);
  CHECK(result.failures[0].worker == worker_id{1});
  CHECK(says(result.failures[0].reason.message, "it is frozen, or the network is cut"));
  REQUIRE(result.workers.size() == 3);
  CHECK(result.workers[2].node == "10.0.0.0:4000");
}

TEST_CASE_FIXTURE(trainer_fixture, "a node on which workers keep dying gets no more while another has room") {
  open(worker_script::until_stopped);
  for (std::uint32_t worker = 1; worker < 4; ++worker)
    nodes[1]->set_script({worker}, worker_script::dies);
  config.scaling.placement = placement_strategy::spread;
  auto expected_node = std::string{"10.0.0.0:4000"};
  SUBCASE("free CPUs") {}
  SUBCASE("no free CPUs") {
    capacity = {1, 0};
    expected_node = "10.0.0.1:4000";
  }
  auto result = fit_and([&](const trainer_actor& trainer) {
    CHECK(is_said("3 workers in a row have died on node 10.0.0.1:4000: for 5 s it gets no others"));
    CHECK(is_formed(2, 7));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.failures.size() == 3);
  REQUIRE(result.workers.size() == 5);
  for (std::size_t worker = 1; worker < 4; ++worker)
    CHECK(result.workers[worker].node == "10.0.0.1:4000");
  CHECK(result.workers[4].node == expected_node);
}

TEST_CASE_FIXTURE(trainer_fixture, "a silent node whose workers alone have the state is waited for, and they go on") {
  open(worker_script::until_stopped);
  config.scaling.placement = placement_strategy::strict_pack;
  auto result = fit_and([&](const trainer_actor& trainer) {
    nodes[0]->freeze();
    CHECK(is_said("node 10.0.0.0:4000 has said nothing for"));
    CHECK(is_said("the run waits for it"));
    nodes[0]->thaw();
    CHECK(is_said("a node answers again"));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.restarts == 0);
  CHECK(result.failures.empty());
  CHECK(result.generations.empty());
  CHECK(nodes[0]->killed_one.all().empty());
}

TEST_CASE_FIXTURE(trainer_fixture, "a silent node whose workers alone have the state is given up in the end") {
  open(worker_script::trains);
  set_script(0, worker_script::until_stopped);
  set_script(1, worker_script::until_stopped);
  config.failure.unreachable_after = std::chrono::milliseconds{500};
  config.scaling.placement = placement_strategy::strict_pack;
  auto result = fit_and([&](const trainer_actor&) {
    nodes[0]->freeze();
    CHECK(is_said("the run waits for it"));
    CHECK(is_said("the run starts again from the beginning, because it has no checkpoint"));
    nodes[0]->thaw();
  });
  CHECK(result.status == run_status::completed);
  CHECK(result.restarts == 1);
  CHECK(result.workers.size() == 4);
}

TEST_CASE_FIXTURE(trainer_fixture,
                  "a node that was given up and speaks again ends what it has, and takes new workers") {
  open(worker_script::waits_for_help);
  config.scaling.num_workers = {2, 3};
  config.scaling.resources_per_worker.cpus = 1;
  capacity = {1, 0};
  auto result = fit_and([&](const trainer_actor&) {
    nodes[1]->freeze();
    CHECK(is_said("the run waits after step 3: it needs at least 2 workers, and has 1"));
    nodes[1]->thaw();
    CHECK(is_said("node 10.0.0.1:4000 answers again"));
  });
  CHECK(result.status == run_status::completed);
  REQUIRE(result.workers.size() == 3);
  CHECK(result.workers[2].node == "10.0.0.1:4000");
  CHECK(result.failures.size() == 1);
  CHECK(nodes[1]->opened.all().size() == 2);
}

TEST_CASE_FIXTURE(trainer_fixture,
                  "a node whose connection is lost is dialled again, and the run goes on when it is back") {
  open(worker_script::waits_for_help);
  config.scaling.num_workers = {2, 3};
  config.scaling.resources_per_worker.cpus = 1;
  capacity = {1, 0};
  auto result = fit_and([&](const trainer_actor&) {
    set_connect_error("10.0.0.1:4000", {errc::unreachable, "nobody listens"});
    caf::anon_send_exit(nodes[1]->node(), caf::exit_reason::kill);
    CHECK(is_said("it needs at least 2 workers, and has 1"));
    set_connect_error("10.0.0.1:4000", {});
    CHECK(is_said("node 10.0.0.1:4000 has joined"));
  });
  CHECK(result.status == run_status::completed);
  REQUIRE(result.workers.size() == 3);
  CHECK(result.workers[2].node == "10.0.0.1:4000");
  REQUIRE(result.failures.size() == 1);
  CHECK(result.failures[0].reason.code == errc::node_lost);
}

TEST_CASE_FIXTURE(trainer_fixture, "a run with a range waits for its nodes, and begins when there are enough") {
  open(worker_script::trains);
  config.scaling.num_workers = {2, 3};
  config.scaling.resources_per_worker.cpus = 1;
  capacity = {1, 0};
  set_connect_error("10.0.0.1:4000", {errc::unreachable, "nobody listens"});
  auto result = fit_and_at_once([&](const trainer_actor&) {
    CHECK(is_said("begins without a node: nobody listens"));
    CHECK(is_said("waits for nodes: "));
    CHECK(nodes[0]->started.all().empty());
    set_connect_error("10.0.0.1:4000", {});
  });
  CHECK(result.status == run_status::completed);
  CHECK(result.workers.size() == 2);
  CHECK(result.failures.empty());
}

TEST_CASE_FIXTURE(trainer_fixture, "a run with a range that gets too few workers ends after its limit") {
  open(worker_script::waits_for_help);
  config.scaling.num_workers = {2, 3};
  config.scaling.resources_per_worker.cpus = 1;
  config.scaling.wait_for_workers = std::chrono::milliseconds{300};
  capacity = {1, 0};
  auto result = fit_and([&](const trainer_actor&) {
    set_connect_error("10.0.0.1:4000", {errc::unreachable, "nobody listens"});
    caf::anon_send_exit(nodes[1]->node(), caf::exit_reason::kill);
  });
  CHECK(result.status == run_status::failed);
  CHECK(result.reason.code == errc::timed_out);
  CHECK(says(result.reason.message, "scaling.wait_for_workers"));
}

TEST_CASE_FIXTURE(trainer_fixture, "the workers of a node that goes away are replaced first, and no step is redone") {
  open(worker_script::until_stopped);
  config.scaling.placement = placement_strategy::spread;
  auto result = fit_and([&](const trainer_actor& trainer) {
    CHECK(ask<void>(nodes[1]->node(), drain_request{600'000}));
    CHECK(nodes[1]->living().empty());
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.failures.empty());
  CHECK(result.restarts == 0);
  REQUIRE(result.generations.size() == 1);
  CHECK(result.generations[0].workers == 2);
  CHECK(result.generations[0].steps_redone == 0);
  CHECK_FALSE(result.generations[0].interrupted_step);
  REQUIRE(result.workers.size() == 3);
  CHECK(result.workers[2].node == "10.0.0.0:4000");
  CHECK(is_said("node 10.0.0.1:4000 is going away"));
}

TEST_CASE_FIXTURE(trainer_fixture,
                  "a drained node's workers are replaced elsewhere, and come back to it when it is resumed") {
  open(worker_script::until_stopped);
  config.scaling.placement = placement_strategy::spread;
  auto result = fit_and([&](const trainer_actor& trainer) {
    CHECK(ask<node_report>(nodes[1]->node(), drain_node{600'000}));
    CHECK(is_said("node 10.0.0.1:4000 is drained"));
    CHECK(is_formed(2));
    CHECK(ask<node_report>(nodes[1]->node(), resume_node{}));
    CHECK(is_said("node 10.0.0.1:4000 takes workers again"));
    kill(0, 2);
    CHECK(is_formed(2, 4));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.restarts == 0);
  CHECK(result.generations.at(0).steps_redone == 0);
  REQUIRE(result.workers.size() == 4);
  CHECK(result.workers[2].node == "10.0.0.0:4000");
  CHECK(result.workers[3].node == "10.0.0.1:4000");
}

TEST_CASE_FIXTURE(trainer_fixture, "a run begins on the nodes that are named, and grows onto one that comes later") {
  open_elastic(worker_script::until_stopped, {0});
  auto result = fit_and([&](const trainer_actor& trainer) {
    name({0, 1});
    CHECK(is_said("node 10.0.0.1:4000 has joined"));
    CHECK(is_formed(2));
    break_script({errc::unreachable, "it exits with code 3"});
    CHECK(is_said("it cannot be learnt which nodes there are: the run goes on with those that it knows (it exits with "
                  "code 3)"));
    name({0, 1});
    CHECK(is_said("it is known again which nodes there are"));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.failures.empty());
  REQUIRE(result.workers.size() == 2);
  CHECK(result.workers[1].node == "10.0.0.1:4000");
}

TEST_CASE_FIXTURE(trainer_fixture, "a node that is named no more is left between two steps, until it is named again") {
  open_elastic(worker_script::until_stopped, {0, 1});
  auto result = fit_and([&](const trainer_actor& trainer) {
    name({0});
    CHECK(is_said("node 10.0.0.1:4000 is named no more: its workers move to other nodes, or leave"));
    CHECK(is_formed(1));
    name({0, 1});
    CHECK(is_said("node 10.0.0.1:4000 takes workers again"));
    CHECK(is_formed(2, 3));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.failures.empty());
  CHECK(result.restarts == 0);
}

TEST_CASE_FIXTURE(trainer_fixture, "naming a drained node again does not undo that a user has drained it") {
  open_elastic(worker_script::until_stopped, {0, 1});
  auto result = fit_and([&](const trainer_actor& trainer) {
    name({0});
    CHECK(is_said("node 10.0.0.1:4000 is named no more"));
    CHECK(is_formed(1));
    CHECK(ask<node_report>(nodes[1]->node(), drain_node{600'000}));
    CHECK(is_said("node 10.0.0.1:4000 is drained"));
    const auto looks = named_looks();
    name({0, 1});
    while (named_looks() < looks + 3)
      std::this_thread::sleep_for(std::chrono::milliseconds{20});
    CHECK_FALSE(was_said("node 10.0.0.1:4000 takes workers again"));
    CHECK(ask<node_report>(nodes[1]->node(), resume_node{}));
    CHECK(is_said("node 10.0.0.1:4000 takes workers again"));
    CHECK(is_formed(2, 3));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
}

TEST_CASE_FIXTURE(trainer_fixture, "slots limit the workers on each of the nodes that are named") {
  open_discovered(worker_script::trains, {});
  name({0, 1}, 1);
  config.scaling.num_workers = 2;
  const auto result = fit();
  CHECK(result.status == run_status::completed);
  REQUIRE(result.workers.size() == 2);
  CHECK(result.workers[0].node != result.workers[1].node);
}

TEST_CASE_FIXTURE(trainer_fixture, "a run whose nodes cannot be learnt does not begin; one with a range waits") {
  open_discovered(worker_script::trains, {0});
  auto why = error{errc::connection_refused, "the script has failed"};
  SUBCASE("the script fails") {
    break_script(why);
  }
  SUBCASE("nobody is named") {
    name({});
    why.message = "no node is named";
  }
  SUBCASE("a fixed number of workers") {
    break_script(why);
    const auto result = fit();
    CHECK(result.status == run_status::failed);
    CHECK(result.reason == error{errc::unreachable, why.message});
    return;
  }
  config.scaling.num_workers = {1, 2};
  const auto result = fit_and_at_once([&](const trainer_actor&) {
    CHECK(is_said("waits for nodes: " + why.message));
    name({0});
  });
  CHECK(result.status == run_status::completed);
}

TEST_CASE_FIXTURE(trainer_fixture, "a named node that has just gone does not end a run that can begin without it") {
  open_discovered(worker_script::trains, {0, 1});
  set_connect_error("10.0.0.0:4000", {errc::unreachable, "nobody listens"});
  auto result = fit();
  INFO(result.reason.message);
  CHECK(result.status == run_status::completed);
  for (const auto& each : result.workers)
    CHECK(each.node == "10.0.0.1:4000");
}

TEST_CASE_FIXTURE(trainer_fixture, "what all nodes lack that a run needs is said at once, before it ends") {
  open(worker_script::trains);
  config.scaling.placement = placement_strategy::spread;
  for (const auto& node : nodes)
    node->open_error = {errc::program_mismatch, "the host lacks a library"};
  const auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(result.reason.code == errc::program_mismatch);
  for (const auto* address : {"10.0.0.0:4000", "10.0.0.1:4000"})
    CHECK(says(result.reason.message, std::string{"node "} + address + ": the host lacks a library"));
}

TEST_CASE_FIXTURE(trainer_fixture,
                  "a run whose node lacks its program ends, whatever becomes of nodes that it does not need") {
  open(worker_script::trains);
  config.scaling.num_workers = 1;
  nodes[0]->open_error = {errc::program_mismatch, "the host lacks a library"};
  // The other one answers after it, or never.
  nodes[1]->on_open = [&] { nodes[0]->opened.wait_for(1); };
  SUBCASE("it lacks the program, too") {
    nodes[1]->open_error = nodes[0]->open_error;
  }
  SUBCASE("it has the program") {}
  SUBCASE("it is lost") {
    nodes[1]->on_open = [&] { caf::anon_send_exit(nodes[1]->node(), caf::exit_reason::kill); };
  }
  const auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(says(result.reason.message, "node 10.0.0.0:4000: the host lacks a library"));
  CHECK(nodes[1]->started.all().empty());
}

TEST_CASE_FIXTURE(trainer_fixture, "other named nodes take the workers of one that lacks the program") {
  open_discovered(worker_script::trains, {0, 1});
  config.scaling.num_workers = 1;
  nodes[0]->open_error = {errc::program_mismatch, "the host lacks a library"};
  SUBCASE("another has it") {
    const auto result = fit();
    CHECK(result.status == run_status::completed);
    REQUIRE(result.workers.size() == 1);
    CHECK(result.workers.front().node == "10.0.0.1:4000");
    CHECK(is_said("node 10.0.0.0:4000: the host lacks a library; other nodes take its workers"));
    CHECK(nodes[0]->started.all().empty());
  }
  SUBCASE("fewer than the most are enough") {
    config.scaling.num_workers = {2, 8};
    config.scaling.resources_per_worker.cpus = 1;
    const auto result = fit();
    CHECK(result.status == run_status::completed);
    CHECK(nodes[0]->started.all().empty());
    CHECK(!nodes[1]->started.all().empty());
  }
  SUBCASE("none has it") {
    nodes[1]->open_error = nodes[0]->open_error;
    const auto result = fit();
    CHECK(result.status == run_status::failed);
    CHECK(result.reason.code == errc::program_mismatch);
    CHECK(says(result.reason.message, "node 10.0.0.0:4000: the host lacks a library\nthe other nodes "));
  }
  SUBCASE("the others have too little") {
    config.scaling.num_workers = 8;
    config.scaling.resources_per_worker.cpus = 1;
    const auto result = fit();
    CHECK(result.status == run_status::failed);
    CHECK(says(result.reason.message, "node 10.0.0.0:4000: the host lacks a library\nthe other nodes "));
    CHECK(nodes[1]->started.all().empty());
  }
}

TEST_CASE_FIXTURE(trainer_fixture, "other named nodes take the workers of one that is lost when it has the program") {
  open_discovered(worker_script::trains, {0, 1});
  config.scaling.num_workers = 1;
  nodes[0]->on_open = [&] { caf::anon_send_exit(nodes[0]->node(), caf::exit_reason::kill); };
  const auto result = fit();
  INFO(result.reason.message);
  REQUIRE(result.status == run_status::completed);
  CHECK(result.workers.back().node == "10.0.0.1:4000");
}
