#include "trainer_fixture.hpp"

#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <string>

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
    CHECK(ask<void>(nodes[1]->node(), drain_node{600'000}));
    CHECK(is_said("node 10.0.0.1:4000 is drained"));
    CHECK(is_formed(2));
    CHECK(ask<void>(nodes[1]->node(), resume_node{}));
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

TEST_CASE_FIXTURE(trainer_fixture, "a run begins on the members of a cluster, and grows onto one that comes later") {
  open_cluster(worker_script::until_stopped, {0});
  config.scaling.num_workers = {1, 2};
  config.scaling.resources_per_worker.cpus = 1;
  capacity = {1, 0};
  auto result = fit_and([&](const trainer_actor& trainer) {
    list({0, 1});
    CHECK(is_said("node 10.0.0.1:4000 has joined"));
    CHECK(is_formed(2));
    // An entry node that is lost changes nothing.
    lose_entry({errc::unreachable, "nobody listens"});
    CHECK(is_said("no entry node of the cluster answers: the run goes on with the nodes that it knows"));
    list({0, 1});
    CHECK(is_said("an entry node of the cluster answers again"));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.failures.empty());
  REQUIRE(result.workers.size() == 2);
  CHECK(result.workers[1].node == "10.0.0.1:4000");
}

TEST_CASE_FIXTURE(trainer_fixture, "members of another version, drained and silent ones are not dialled") {
  open_cluster(worker_script::trains, {});
  config.scaling.num_workers = {1, 2};
  std::string why;
  SUBCASE("another version") {
    list({0, 1}, [](listed_member& x) {
      if (x.what.address == "10.0.0.0:4000") {
        x.what.protocol = protocol_version - 1;
        x.what.version = "0.9";
      }
    });
    auto result = fit();
    CHECK(result.status == run_status::completed);
    CHECK(is_said("node 10.0.0.0:4000 is not used: it speaks version " + std::to_string(protocol_version - 1) +
                  " of the protocol (Troupe 0.9)"));
    for (const auto& each : result.workers)
      CHECK(each.node == "10.0.0.1:4000");
    return;
  }
  SUBCASE("drained") {
    list({0}, [](listed_member& x) { x.what.phase = member_phase::drained; });
    why = "`troupe resume 10.0.0.0:4000` takes it back";
  }
  SUBCASE("silent") {
    list({0}, [](listed_member& x) { x.is_silent = true; });
    why = "it has said nothing for";
  }
  SUBCASE("none") {
    why = "the cluster has no node that the run can use";
  }
  config.scaling.num_workers = 1;
  auto result = fit();
  CHECK(result.status == run_status::failed);
  CHECK(result.reason.code == errc::unsatisfiable);
  INFO(result.reason.message);
  CHECK(says(result.reason.message, why));
}

TEST_CASE_FIXTURE(trainer_fixture, "without an entry node a run does not begin; one with a range waits for it") {
  open_cluster(worker_script::trains, {0});
  lose_entry({errc::connection_refused, "nobody listens at 10.0.0.9:4000"});
  SUBCASE("a fixed number of workers") {
    auto result = fit();
    CHECK(result.status == run_status::failed);
    CHECK(result.reason == error{errc::unreachable, "nobody listens at 10.0.0.9:4000"});
  }
  SUBCASE("a range") {
    config.scaling.num_workers = {1, 2};
    auto result = fit_and_at_once([&](const trainer_actor&) {
      CHECK(is_said("waits for nodes: nobody listens at 10.0.0.9:4000"));
      list({0});
    });
    CHECK(result.status == run_status::completed);
  }
}

TEST_CASE_FIXTURE(trainer_fixture, "a member that has just gone does not end a run that can begin without it") {
  open_cluster(worker_script::trains, {0, 1});
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

namespace {

/// Sends a program for as long as the run lasts.
expected<std::string> send_until_stopped(const std::stop_token& stop) {
  std::mutex mutex;
  auto lock = std::unique_lock{mutex};
  std::condition_variable_any{}.wait(lock, stop, [] { return false; });
  return std::string{};
}

} // namespace

TEST_CASE_FIXTURE(trainer_fixture,
                  "a run whose node lacks its program ends, whatever becomes of nodes that it does not need") {
  open(worker_script::trains);
  config.scaling.num_workers = 1;
  nodes[0]->open_error = {errc::program_mismatch, "the host lacks a library"};
  // The other one answers after it, or never.
  auto answers = true;
  offer_program = [&](const cluster_config&, const std::string& address,
                      const std::stop_token& stop) -> expected<std::string> {
    if (address == "10.0.0.0:4000")
      return std::string{};
    nodes[0]->opened.wait_for(1);
    return answers ? expected<std::string>{std::string{}} : send_until_stopped(stop);
  };
  auto result = run_result{};
  SUBCASE("it lacks the program, too") {
    nodes[1]->open_error = nodes[0]->open_error;
    result = fit();
  }
  SUBCASE("it has the program") {
    result = fit();
  }
  SUBCASE("it is lost") {
    answers = false;
    result = fit_and_at_once([&](const trainer_actor&) {
      nodes[0]->opened.wait_for(1);
      caf::anon_send_exit(nodes[1]->node(), caf::exit_reason::kill);
    });
  }
  CHECK(result.status == run_status::failed);
  CHECK(says(result.reason.message, "node 10.0.0.0:4000: the host lacks a library"));
  CHECK(nodes[1]->started.all().empty());
}

TEST_CASE_FIXTURE(trainer_fixture,
                  "a program is offered to each node before it is opened there, and a refusal ends the run") {
  open(worker_script::trains);
  config.scaling.placement = placement_strategy::spread;
  record<std::string> offered;
  auto refusal = error{};
  offer_program = [&](const cluster_config&, const std::string& address,
                      const std::stop_token&) -> expected<std::string> {
    const auto i = address == "10.0.0.0:4000" ? 0u : 1u;
    if (!nodes[i]->opened.all().empty())
      return fail(errc::internal, "it was open before");
    offered.add(address);
    return i == 1 && refusal.code != errc::none ? expected<std::string>{fail(refusal)} : "sent to " + address;
  };
  SUBCASE("both take it") {
    const auto result = fit();
    CHECK(result.status == run_status::completed);
    CHECK(offered.all().size() == 2);
    CHECK(is_said("sent to 10.0.0.0:4000"));
    CHECK(is_said("sent to 10.0.0.1:4000"));
  }
  SUBCASE("one has no room") {
    refusal = {errc::unsatisfiable, "the program is too large"};
    const auto result = fit();
    CHECK(result.status == run_status::failed);
    CHECK(says(result.reason.message, "node 10.0.0.1:4000: the program is too large"));
    CHECK(nodes[1]->opened.all().empty());
  }
}

TEST_CASE_FIXTURE(trainer_fixture, "members of a cluster take the workers of one that lacks the program") {
  open_cluster(worker_script::trains, {0, 1});
  config.scaling.num_workers = 1;
  nodes[0]->open_error = {errc::program_mismatch, "the host lacks a library"};
  SUBCASE("another has it") {
    const auto result = fit();
    CHECK(result.status == run_status::completed);
    REQUIRE(result.workers.size() == 1);
    CHECK(result.workers.front().node == "10.0.0.1:4000");
    CHECK(is_said("node 10.0.0.0:4000: the host lacks a library; other nodes of the cluster take its workers"));
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
    CHECK(says(result.reason.message, "node 10.0.0.0:4000: the host lacks a library\nthe cluster's other nodes "));
  }
  SUBCASE("the others have too little") {
    config.scaling.num_workers = 8;
    config.scaling.resources_per_worker.cpus = 1;
    const auto result = fit();
    CHECK(result.status == run_status::failed);
    CHECK(says(result.reason.message, "node 10.0.0.0:4000: the host lacks a library\nthe cluster's other nodes "));
    CHECK(nodes[1]->started.all().empty());
  }
}

TEST_CASE_FIXTURE(trainer_fixture, "members of a cluster take the workers of one that is lost before they start") {
  open_cluster(worker_script::trains, {0, 1});
  config.scaling.num_workers = 1;
  offer_program = [](const cluster_config&, const std::string& address, const std::stop_token& stop) {
    return address == "10.0.0.0:4000" ? send_until_stopped(stop) : expected<std::string>{std::string{}};
  };
  const auto result = fit_and_at_once([&](const trainer_actor&) {
    nodes[1]->opened.wait_for(1);
    caf::anon_send_exit(nodes[0]->node(), caf::exit_reason::kill);
  });
  CHECK(result.status == run_status::completed);
  REQUIRE(result.workers.size() == 1);
  CHECK(result.workers.front().node == "10.0.0.1:4000");
}
