#include "actor_fixture.hpp"
#include "trainer/control_journal.hpp"

#include <troupe/actors/run_directory.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include <variant>

using namespace troupe;
using namespace troupe::actors;
using serialization::read_file;
using serialization::scratch_directory;
namespace fs = std::filesystem;

namespace {

using event = std::variant<run_started, run_progress, checkpoint_saved, checkpoint_skipped, checkpoint_failed,
                           generation_record, run_notice>;

class event_recorder : public run_observer::base {
 public:
  event_recorder(caf::actor_config& cfg, std::shared_ptr<record<event>> events)
      : run_observer::base(cfg), events_(std::move(events)) {}

  behavior_type make_behavior() override {
    return {
        [this](const run_started& x) { events_->add(x); },
        [this](const run_progress& x) { events_->add(x); },
        [this](const checkpoint_saved& x) { events_->add(x); },
        [this](const checkpoint_skipped& x) { events_->add(x); },
        [this](const checkpoint_failed& x) { events_->add(x); },
        [this](const generation_record& x) { events_->add(x); },
        [this](const run_notice& x) { events_->add(x); },
    };
  }

 private:
  std::shared_ptr<record<event>> events_;
};

std::vector<std::string> compare_texts(const std::string& ours, const std::string& theirs) {
  return ours == theirs ? std::vector<std::string>{} : std::vector<std::string>{ours + " / " + theirs};
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// What another process asks, and hears.
struct fake_connection {
  record<nlohmann::json> answers;
  record<nlohmann::json> published;
  std::mutex mutex;
  std::function<void(control_port::connection, std::string)> on_line;

  void say(const std::string& line) {
    auto lock = std::lock_guard{mutex};
    REQUIRE(on_line);
    on_line(7, line);
  }

  [[nodiscard]] nlohmann::json ask(const std::string& line) {
    const auto before = answers.all().size();
    say(line);
    return answers.wait_for(before + 1).at(before);
  }
};

/// A port with one connection.
class fake_control_port : public control_port {
 public:
  explicit fake_control_port(std::shared_ptr<fake_connection> peer) : peer_(std::move(peer)) {}
  ~fake_control_port() override {
    auto lock = std::lock_guard{peer_->mutex};
    peer_->on_line = nullptr;
  }

  void serve(std::function<void(connection, std::string)> on_line) override {
    auto lock = std::lock_guard{peer_->mutex};
    peer_->on_line = std::move(on_line);
  }
  void answer(connection whom, std::string line) override {
    CHECK(whom == 7);
    peer_->answers.add(nlohmann::json::parse(line));
  }
  void subscribe(connection) override { is_subscribed_ = true; }
  void publish(const std::string& line) override { peer_->published.add(nlohmann::json::parse(line)); }
  [[nodiscard]] bool has_subscribers() const override { return is_subscribed_; }

 private:
  std::shared_ptr<fake_connection> peer_;
  std::atomic<bool> is_subscribed_ = false;
};

/// A trainer, what it runs on, and where its files go.
class trainer_fixture : public actor_fixture {
 public:
  trainer_fixture() {
    config.run.name = "digits";
    config.run.storage_path = scratch_.path();
    config.run.keep_ledger = true;
    config.scaling.num_workers = 2;
    config.config = {{"lr", 0.5}};
  }

  ~trainer_fixture() {
    if (observer_)
      caf::anon_send_exit(observer_, caf::exit_reason::user_shutdown);
  }

  /// Two nodes whose workers all follow `script`.
  void open(worker_script script) {
    for (auto i = 0; i < 2; ++i) {
      nodes.push_back(std::make_shared<fake_node_processes>(system(), script));
      config.cluster.nodes.push_back("10.0.0." + std::to_string(i) + ":4000");
    }
  }

  /// As `open`, on the members of a cluster, of which `list` lists some.
  void open_cluster(worker_script script, std::vector<std::size_t> listed) {
    open(script);
    addresses_ = std::exchange(config.cluster.nodes, {});
    config.cluster.entry = {"10.0.0.9:4000"};
    list(listed);
  }

  /// What the entry node says from now on.
  void list(const std::vector<std::size_t>& some, const std::function<void(listed_member&)>& change = {}) {
    auto lock = std::lock_guard{members_->mutex};
    members_->refusal = {};
    members_->list.clear();
    for (auto i : some) {
      listed_member each;
      each.what.address = addresses_.at(i);
      each.what.protocol = protocol_version;
      if (change)
        change(each);
      members_->list.push_back(std::move(each));
    }
  }
  void lose_entry(const error& reason) {
    auto lock = std::lock_guard{members_->mutex};
    members_->refusal = reason;
  }

  /// On both nodes.
  void set_script(std::uint32_t worker, worker_script script) {
    for (const auto& node : nodes)
      node->set_script({worker}, script);
  }

  /// From now on; without a code, the node can be reached again.
  void set_connect_error(const std::string& address, const error& reason) {
    auto lock = std::lock_guard{errors_->mutex};
    if (reason.code == errc::none)
      errors_->of.erase(address);
    else
      errors_->of[address] = reason;
  }

  trainer_actor spawn() {
    trainer_services services;
    services.connect_node = make_connector();
    services.open_control_port = open_control_port;
    services.list_members = [shown = members_](const cluster_config&) -> expected<std::vector<listed_member>> {
      auto lock = std::lock_guard{shown->mutex};
      if (shown->refusal.code != errc::none)
        return fail(shown->refusal);
      return shown->list;
    };
    services.program_path = "/opt/train";
    services.build_id = "c0ffee";
    services.compare_numerics = compare_texts;
    services.show_output = [this](rank_id rank, const std::string& line) {
      shown.add(std::to_string(rank.value) + ": " + line);
    };
    auto trainer = spawn_trainer(system(), "train", config, std::move(services));
    events = std::make_shared<record<event>>();
    observer_ = system().spawn<event_recorder>(events);
    REQUIRE(ask<void>(trainer, observer_));
    return trainer;
  }

  run_result fit() {
    auto trainer = spawn();
    auto result = ask<run_result>(trainer, fit_request{});
    REQUIRE(result);
    CHECK(has_ended(trainer));
    check_that_nothing_is_left();
    return *result;
  }

  void check_that_nothing_is_left() {
    for (const auto& node : nodes) {
      if (auto handle = node->node())
        CHECK(has_ended(handle));
      CHECK(node->living().empty());
    }
  }

  /// Asks for `fit`, acts once training is under way, and returns the answer.
  template <class Action>
  run_result fit_and(Action act) {
    return fit_and_at_once([&](const trainer_actor& trainer) {
      CHECK(events->wait_until_any([](const event& x) { return std::holds_alternative<run_progress>(x); }));
      act(trainer);
    });
  }

  /// As above, without waiting for anything.
  template <class Action>
  run_result fit_and_at_once(Action act) {
    auto trainer = spawn();
    auto pending = self()->request(trainer, patience, fit_request{});
    act(trainer);
    std::optional<run_result> result;
    pending.receive([&](run_result& x) { result = std::move(x); },
                    [](const caf::error& reason) { FAIL_CHECK(to_string(reason)); });
    REQUIRE(result);
    CHECK(has_ended(trainer));
    check_that_nothing_is_left();
    return *result;
  }

  [[nodiscard]] fs::path root() const { return scratch_.path() / "digits"; }

  [[nodiscard]] nlohmann::json stored_result() const {
    return nlohmann::json::parse(read_file(root() / "result.json"));
  }

  /// How many lines a file has.
  [[nodiscard]] std::size_t lines_of(const std::string& name) const {
    auto text = read_file(root() / name);
    return static_cast<std::size_t>(std::ranges::count(text, '\n'));
  }

  template <class T>
  std::optional<T> first_event(const std::function<bool(const T&)>& wanted = [](const T&) { return true; }) {
    std::optional<T> result;
    CHECK(events->wait_until_any([&](const event& x) {
      const auto* found = std::get_if<T>(&x);
      if (found == nullptr || !wanted(*found))
        return false;
      result = *found;
      return true;
    }));
    return result;
  }

  /// Returns once somebody was told this.
  bool is_said(const std::string& text) {
    return first_event<run_notice>([&](const run_notice& x) { return says(x.text, text); }).has_value();
  }

  /// Returns once there is a generation of so many workers, or a later one.
  bool is_formed(std::uint32_t workers, std::uint64_t generation = 2) {
    return first_event<generation_record>(
               [&](const generation_record& x) { return x.workers == workers && x.generation.value >= generation; })
        .has_value();
  }

  /// A process of the node is killed from outside.
  void kill(std::size_t node, std::uint32_t worker) { nodes[node]->end({worker}, 137, "killed by signal 9 (SIGKILL)"); }

  trainer_config config;
  std::vector<std::shared_ptr<fake_node_processes>> nodes;
  decltype(trainer_services::open_control_port) open_control_port;
  resources capacity{4, 0};
  bool first_node_is_dead = false;
  record<std::string> shown;
  std::shared_ptr<record<event>> events;

 private:
  struct connect_errors {
    std::mutex mutex;
    std::map<std::string, error> of;
  };

  /// Called in threads that may outlive the fixture, but not its actor system.
  decltype(trainer_services::connect_node) make_connector() {
    std::map<std::string, std::shared_ptr<fake_node_processes>> reachable;
    const auto& addresses = config.cluster.entry.empty() ? config.cluster.nodes : addresses_;
    for (std::size_t i = 0; i < nodes.size(); ++i)
      reachable[addresses.at(i)] = nodes[i];
    auto dead = std::exchange(first_node_is_dead, false) ? addresses.at(0) : std::string{};
    return [&system = system(), reachable, dead, capacity = capacity, errors = errors_](
               const cluster_config&, const std::string& address) -> expected<std::unique_ptr<connected_node>> {
      {
        auto lock = std::lock_guard{errors->mutex};
        if (auto i = errors->of.find(address); i != errors->of.end())
          return fail(i->second);
      }
      auto result =
          std::make_unique<fake_node>(system, reachable.at(address), address.substr(0, address.find(':')), capacity);
      if (address == dead)
        caf::anon_send_exit(result->handle(), caf::exit_reason::kill);
      return result;
    };
  }

  struct cluster_members {
    std::mutex mutex;
    std::vector<listed_member> list;
    error refusal;
  };

  scratch_directory scratch_;
  run_observer observer_;
  /// Of the nodes of a cluster.
  std::vector<std::string> addresses_;
  std::shared_ptr<cluster_members> members_ = std::make_shared<cluster_members>();
  std::shared_ptr<connect_errors> errors_ = std::make_shared<connect_errors>();
};

} // namespace

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

// -- healing --------------------------------------------------------------------------------------------------------

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

// -- nodes that are lost, and come -----------------------------------------------------------------------------------

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

// -- clusters ---------------------------------------------------------------------------------------------------------

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

// -- on request -----------------------------------------------------------------------------------------------------

TEST_CASE_FIXTURE(trainer_fixture, "a run takes another size on request, up and down") {
  open(worker_script::until_stopped);
  auto result = fit_and([&](const trainer_actor& trainer) {
    for (auto workers : {0u, 9u}) {
      auto refused = ask<void>(trainer, resize_request{workers});
      REQUIRE_FALSE(refused);
      CHECK(refused.error().code == errc::invalid_argument);
    }
    CHECK(ask<void>(trainer, resize_request{4}));
    CHECK(is_formed(4));
    CHECK(ask<void>(trainer, resize_request{1}));
    CHECK(is_formed(1));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.failures.empty());
  CHECK(result.workers.size() == 4);
  CHECK(result.generations.back().workers == 1);
  CHECK_FALSE(result.state_sha256.empty());
}

TEST_CASE_FIXTURE(trainer_fixture, "a run that is paused goes on when it is resumed") {
  open(worker_script::until_stopped);
  auto result = fit_and([&](const trainer_actor& trainer) {
    CHECK(ask<void>(trainer, pause_request{}));
    CHECK(is_said("the run is paused after step 5"));
    CHECK(ask<void>(trainer, pause_request{}));
    CHECK(ask<void>(trainer, resume_request{}));
    CHECK(is_formed(2));
    CHECK(ask<void>(trainer, resume_request{}));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK(result.failures.empty());
  CHECK(result.generations.size() == 1);
  std::vector<std::string> requests;
  auto in = std::ifstream{root() / "events.jsonl"};
  for (std::string line; std::getline(in, line);)
    if (const auto event = nlohmann::json::parse(line); event["event"] == "request")
      requests.push_back(event["what"]);
  CHECK(requests == std::vector<std::string>{"pause", "pause", "resume", "resume"});
}

TEST_CASE_FIXTURE(trainer_fixture, "before a run has begun it cannot be paused, and whoever asks is told") {
  open(worker_script::trains);
  auto trainer = spawn();
  auto refused = ask<void>(trainer, pause_request{});
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message == "cannot pause: the run has not begun");
  CHECK(is_said("cannot pause: the run has not begun"));
  CHECK_FALSE(ask<void>(trainer, checkpoint_request{}));
  caf::anon_send_exit(trainer, caf::exit_reason::user_shutdown);
  CHECK(has_ended(trainer));
}

TEST_CASE_FIXTURE(trainer_fixture, "what is asked for is answered when the journal says it") {
  open(worker_script::until_stopped);
  std::ignore = fit_and([&](const trainer_actor& trainer) {
    const auto kept = [&] {
      const auto journal = control_journal{system(), root()}.read();
      REQUIRE(journal.has_value());
      REQUIRE(journal->has_value());
      return (**journal).state;
    };
    CHECK(ask<void>(trainer, pause_request{}));
    CHECK(kept().asked == run_course::request::pause);
    CHECK(ask<void>(trainer, resume_request{}));
    CHECK(kept().asked == run_course::request::none);
    CHECK(ask<void>(trainer, resize_request{3}));
    CHECK(kept().workers == 3);
    CHECK(ask<void>(trainer, stop_request{}));
  });
}

TEST_CASE_FIXTURE(trainer_fixture, "a run that is paused can be stopped") {
  open(worker_script::until_stopped);
  auto result = fit_and([&](const trainer_actor& trainer) {
    CHECK(ask<void>(trainer, pause_request{}));
    CHECK(is_said("the run is paused after step 5"));
    CHECK(ask<void>(trainer, stop_request{}));
  });
  CHECK(result.status == run_status::stopped);
  CHECK_FALSE(result.state_sha256.empty());
}
