#pragma once

#include "actor_fixture.hpp"
#include "trainer/control_journal.hpp"

#include <troupe/actors/run_directory.hpp>
#include <troupe/config.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <unistd.h>
#include <variant>

namespace troupe::actors::testing {

namespace fs = std::filesystem;
using serialization::read_file;
using serialization::scratch_directory;

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

inline std::vector<std::string> compare_texts(const std::string& ours, const std::string& theirs) {
  return ours == theirs ? std::vector<std::string>{} : std::vector<std::string>{ours + " / " + theirs};
}

inline bool says(const std::string& text, const std::string& part) {
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

  /// As `open`, on nodes that a script names, which `name` sets.
  void open_discovered(worker_script script, const std::vector<std::size_t>& named) {
    open(script);
    addresses_ = std::exchange(config.cluster.nodes, {});
    config.cluster.discover = {node_source::kind::script, "nodes"};
    name(named);
  }

  /// The same for a run with one worker on each of one or two nodes.
  void open_elastic(worker_script script, const std::vector<std::size_t>& named) {
    open_discovered(script, named);
    config.scaling.num_workers = {1, 2};
    config.scaling.resources_per_worker.cpus = 1;
    capacity = {1, 0};
  }

  /// What the script says from now on; each node may have so many workers.
  void name(const std::vector<std::size_t>& some, std::optional<std::uint32_t> slots = {}) {
    auto lock = std::lock_guard{named_->mutex};
    auto nodes = std::vector<named_node>{};
    for (auto i : some)
      nodes.push_back({addresses_.at(i), slots});
    named_->answer = std::move(nodes);
  }
  /// How often the script was asked.
  [[nodiscard]] unsigned named_looks() {
    auto lock = std::lock_guard{named_->mutex};
    return named_->looks;
  }
  void break_script(const error& reason) {
    auto lock = std::lock_guard{named_->mutex};
    named_->answer = fail(reason);
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
    services.find_nodes = [named = named_](const node_source&) {
      auto lock = std::lock_guard{named->mutex};
      ++named->looks;
      return named->answer;
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

  /// Whether it was said by now.
  bool was_said(const std::string& text) {
    return std::ranges::any_of(events->all(), [&](const event& x) {
      const auto* notice = std::get_if<run_notice>(&x);
      return notice != nullptr && says(notice->text, text);
    });
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
    const auto& addresses = config.cluster.discover.is_set() ? addresses_ : config.cluster.nodes;
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

  struct naming {
    std::mutex mutex;
    expected<std::vector<named_node>> answer;
    unsigned looks = 0;
  };

  scratch_directory scratch_;
  run_observer observer_;
  /// Of the nodes that may be named.
  std::vector<std::string> addresses_;
  std::shared_ptr<naming> named_ = std::make_shared<naming>();
  std::shared_ptr<connect_errors> errors_ = std::make_shared<connect_errors>();
};

} // namespace troupe::actors::testing
