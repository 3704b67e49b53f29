#pragma once

#include <troupe/actors/error_conversion.hpp>
#include <troupe/actors/handles.hpp>
#include <troupe/actors/join_handshake.hpp>
#include <troupe/actors/node.hpp>
#include <troupe/actors/process_launcher.hpp>
#include <troupe/actors/trainer.hpp>
#include <troupe/serialization/digest.hpp>

#include "scratch.hpp"

#include <caf/all.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

/// Troupe's actors in one process, without sockets and processes: a launcher whose workers are actors that play a
/// worker's part.
namespace troupe::actors {

/// A test that waits longer than this has failed.
inline constexpr auto patience = std::chrono::seconds{60};

/// An actor system that knows Troupe's types.
class stage_house {
 public:
  stage_house() : system_((init(), config_)), self_(system_) {}

  [[nodiscard]] caf::actor_system& system() noexcept { return system_; }
  [[nodiscard]] caf::scoped_actor& self() noexcept { return self_; }

  /// Asks, waits, and returns the answer or the error.
  template <class Result, class Handle, class... Ts>
  expected<Result> ask(const Handle& whom, Ts... message) {
    auto request = self_->request(whom, patience, std::move(message)...);
    std::optional<error> refusal;
    auto refuse = [&](const caf::error& reason) { refusal = from_caf(reason); };
    if constexpr (std::is_void_v<Result>) {
      request.receive([] {}, refuse);
      if (refusal)
        return fail(*refusal);
      return {};
    } else {
      std::optional<Result> result;
      request.receive([&](Result& value) { result = std::move(value); }, refuse);
      if (refusal)
        return fail(*refusal);
      return std::move(*result);
    }
  }

  /// Returns once the actor has ended.
  template <class Handle>
  bool has_ended(const Handle& whom) {
    self_->monitor(whom);
    auto ended = false;
    self_->receive([&](const caf::down_msg&) { ended = true; }, caf::after(patience) >> [] {});
    return ended;
  }

 private:
  void init() {
    static const auto once = [] {
      caf::init_global_meta_objects<caf::id_block::troupe_messages>();
      caf::init_global_meta_objects<caf::id_block::troupe_actors>();
      caf::core::init_global_meta_objects();
      return true;
    }();
    std::ignore = once;
    config_.set("caf.scheduler.max-threads", 2);
  }

  caf::actor_system_config config_;
  caf::actor_system system_;
  caf::scoped_actor self_;
};

/// What has been said so far, and a way to wait for more.
template <class T>
class record {
 public:
  void add(T x) {
    auto lock = std::lock_guard{mutex_};
    all_.push_back(std::move(x));
    changed_.notify_all();
  }

  /// All, once there are `count` or patience is over.
  std::vector<T> wait_for(std::size_t count) {
    auto lock = std::unique_lock{mutex_};
    changed_.wait_for(lock, patience, [&] { return all_.size() >= count; });
    return all_;
  }

  /// Whether one comes that is as it is wanted.
  bool wait_until_any(const std::function<bool(const T&)>& wanted) {
    auto lock = std::unique_lock{mutex_};
    return changed_.wait_for(lock, patience, [&] { return std::ranges::any_of(all_, wanted); });
  }

  std::vector<T> all() {
    auto lock = std::lock_guard{mutex_};
    return all_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<T> all_;
};

/// What a played worker does.
enum class part {
  /// Joins, agrees, trains some steps, takes a checkpoint, returns.
  trains,
  /// As above, but trains until it is told to stop.
  until_stopped,
  /// Throws after the third step; the others wait for it until they are cut off.
  throws,
  waits_for_others,
  /// Its process ends after the third step.
  dies,
  /// Its process starts and says nothing.
  silent,
  /// Its process ends before it joins.
  stillborn,
  /// Is another build.
  other_build,
  /// Does not know the secret.
  impostor,
  /// Has another plan.
  disagrees,
};

/// The processes of one node, played. Shared by the test, the launcher and the workers.
class stage : public std::enable_shared_from_this<stage> {
 public:
  stage(caf::actor_system& system, part everybody) : system_(system), everybody_(everybody) {}

  /// What one of the workers does instead.
  void cast(worker_id worker, part role) { roles_[worker] = role; }

  [[nodiscard]] part role_of(worker_id worker) const {
    auto i = roles_.find(worker);
    return i == roles_.end() ? everybody_ : i->second;
  }

  [[nodiscard]] launcher_factory factory();

  void set_node(node_actor node) {
    auto lock = std::lock_guard{mutex_};
    node_ = std::move(node);
  }
  [[nodiscard]] node_actor node() {
    auto lock = std::lock_guard{mutex_};
    return node_;
  }

  void start(const launch_request& request);

  /// A process has ended; once for each.
  void end(worker_id worker, std::int32_t status, const std::string& how, std::vector<std::string> last_lines = {}) {
    launcher_events events;
    run_id run;
    {
      auto lock = std::lock_guard{mutex_};
      auto i = living_.find(worker);
      if (i == living_.end())
        return;
      run = i->second.run;
      if (i->second.actor)
        caf::anon_send_exit(i->second.actor, caf::exit_reason::kill);
      living_.erase(i);
      events = events_;
    }
    if (events.ended)
      events.ended({run, worker, status, how, std::move(last_lines)});
  }

  void write(const worker_output& output) {
    auto lock = std::lock_guard{mutex_};
    if (events_.output)
      events_.output(output);
  }

  [[nodiscard]] std::vector<worker_id> living() {
    auto lock = std::lock_guard{mutex_};
    std::vector<worker_id> result;
    for (const auto& [worker, process] : living_)
      result.push_back(worker);
    return result;
  }

  void kill_all() {
    for (auto worker : living())
      end(worker, 137, "killed by signal 9 (SIGKILL)");
  }

  void connect(launcher_events events) {
    auto lock = std::lock_guard{mutex_};
    events_ = std::move(events);
  }
  void disconnect() {
    connect({});
    set_node(node_actor{});
    kill_all();
  }

  record<open_run> opened;
  record<run_id> killed;
  record<run_id> closed;
  record<launch_request> started;
  record<begin_training> begun;
  /// What opening and starting fail with.
  error open_error;
  error start_error;
  /// How many steps a run has.
  std::uint64_t steps = 5;

 private:
  struct process {
    run_id run;
    caf::actor actor;
  };

  caf::actor_system& system_;
  part everybody_;
  std::map<worker_id, part> roles_;
  std::mutex mutex_;
  node_actor node_;
  launcher_events events_;
  std::map<worker_id, process> living_;
};

class played_launcher : public process_launcher {
 public:
  explicit played_launcher(std::shared_ptr<stage> where) : stage_(std::move(where)) {}
  ~played_launcher() override { stage_->disconnect(); }

  expected<std::string> open(const open_run& request) override {
    stage_->opened.add(request);
    if (stage_->open_error.code != errc::none)
      return fail(stage_->open_error);
    return "/there" + request.program_path;
  }

  expected<std::uint32_t> start(const launch_request& request) override {
    if (stage_->start_error.code != errc::none)
      return fail(stage_->start_error);
    stage_->start(request);
    return 1000 + request.worker.value;
  }

  void kill(const run_id& run) override {
    stage_->killed.add(run);
    stage_->kill_all();
  }

  void close(const run_id& run) override { stage_->closed.add(run); }

 private:
  std::shared_ptr<stage> stage_;
};

inline launcher_factory stage::factory() {
  return [me = shared_from_this()](launcher_events events) -> std::unique_ptr<process_launcher> {
    me->connect(std::move(events));
    return std::make_unique<played_launcher>(me);
  };
}

/// A worker process, as far as the other actors see it.
class played_worker : public worker_actor::base {
 public:
  played_worker(caf::actor_config& cfg, std::shared_ptr<stage> where, launch_request request)
      : worker_actor::base(cfg), stage_(std::move(where)), request_(std::move(request)) {}

  behavior_type make_behavior() override {
    join();
    return {
        [this](const begin_training& message) { begin(message); },
        [this](const control_command& command) {
          if (command.kind == command_kind::stop && role() == part::until_stopped)
            save_and_finish(true);
        },
        [this](const abort_training& message) { finish(message.reason); },
        [this](const release_worker&) { stage_->end(request_.worker, 0, "exit code 0"); },
    };
  }

 private:
  [[nodiscard]] part role() const { return stage_->role_of(request_.worker); }

  void join() {
    auto secret = role() == part::impostor ? "not the secret" : request_.secret;
    auto hello = join_request{request_.run, request_.worker, serialization::random_hex(16)};
    auto node = stage_->node();
    request(node, patience, hello)
        .then(
            [this, node, hello, secret](const join_challenge& challenge) {
              if (role() != part::impostor && !verify_node(secret, hello, challenge))
                return leave("the node does not know the secret");
              auto proof = make_proof(secret, join_role::worker, hello.run, hello.worker, challenge.nonce);
              request(node, patience, join_proof{hello.run, hello.worker, proof})
                  .then(
                      [this](const run_control& control, const collectives_actor&, const checkpoint_store& store) {
                        control_ = control;
                        store_ = store;
                        say_ready();
                      },
                      [this](const caf::error& reason) { leave(from_caf(reason).message); });
            },
            [this](const caf::error& reason) { leave(from_caf(reason).message); });
  }

  void leave(const std::string& why) { stage_->end(request_.worker, 1, "exit code 1", {why}); }

  void say_ready() {
    worker_ready ready;
    ready.run = request_.run;
    ready.worker = request_.worker;
    ready.pid = 1000 + request_.worker.value;
    ready.host = "host of " + std::to_string(request_.worker.value);
    ready.build_id = role() == part::other_build ? "decaf" : "c0ffee";
    ready.numerics = R"({"cpu":"v3"})";
    request(control_, patience, ready, worker_actor{this})
        .then([] {}, [this](const caf::error& reason) { leave(from_caf(reason).message); });
  }

  void begin(const begin_training& message) {
    stage_->begun.add(message);
    begin_ = message;
    step_ = first_step();
    run_plan plan;
    plan.run = begin_.run;
    plan.generation = begin_.generation;
    plan.worker = begin_.worker;
    plan.steps = begin_.steps > 0 ? begin_.steps : stage_->steps;
    plan.batch_samples = role() == part::disagrees ? 65 : 64;
    plan.data_samples = 1797;
    plan.data_fingerprint = "digits";
    plan.tensors = "w f32 [100]";
    request(control_, caf::infinite, plan)
        .then([this, plan](const plan_accepted&) { train(plan.steps); },
              [this](const caf::error& reason) { finish(from_caf(reason)); });
  }

  /// The step that the last checkpoint stands at, which is in its name.
  [[nodiscard]] std::uint64_t first_step() const {
    if (!begin_.restore_step)
      return 0;
    auto name = std::filesystem::path{begin_.restore_from}.filename().string();
    return serialization::parse_checkpoint_name(name)->value;
  }

  void train(std::uint64_t steps) {
    stage_->write({request_.run, request_.worker, {"hello from rank " + std::to_string(begin_.rank.value)}});
    if (role() == part::throws || role() == part::dies || role() == part::waits_for_others)
      steps = std::min<std::uint64_t>(steps, 3);
    metrics_batch batch;
    batch.run = begin_.run;
    batch.worker = begin_.worker;
    batch.rank = begin_.rank;
    while (step_ < steps) {
      ++step_;
      batch.rows.push_back({{step_}, step_, {{"loss", 1.0 / static_cast<double>(step_)}}});
      batch.ledger.push_back({{step_}, begin_.generation, begin_.ownership[begin_.rank.value]});
    }
    batch.applied = {step_};
    request(control_, patience, batch)
        .then([this] { after_training(); }, [this](const caf::error& reason) { finish(from_caf(reason)); });
  }

  void after_training() {
    switch (role()) {
    case part::throws:
      return finish({errc::user_error, "rank " + std::to_string(begin_.rank.value) + " after step 3: out of range"});
    case part::dies:
      return stage_->end(request_.worker, 139, "killed by signal 11 (SIGSEGV)", {"its last line"});
    case part::trains:
      return save_and_finish(false);
    case part::until_stopped:
    case part::waits_for_others:
    case part::silent:
    case part::stillborn:
    case part::other_build:
    case part::impostor:
    case part::disagrees:
      return;
    }
  }

  void save_and_finish(bool stopped) {
    auto state = serialization::sample_state{{{"w", dtype::f32, {100}}}, 7};
    checkpoint_part message;
    message.run = begin_.run;
    message.generation = begin_.generation;
    message.step = {step_};
    message.attempt = 1;
    message.rank = begin_.rank;
    message.world_size = begin_.world_size;
    message.tensors = state.specs();
    message.values_json = "{}";
    auto plan = serialization::plan_chunks(message.tensors, message.world_size);
    auto directory = std::filesystem::path{begin_.run_directory} / "checkpoints" /
                     serialization::temporary_name(message.step, message.generation, 1);
    auto views = state.views();
    auto written = serialization::write_part(directory, begin_.rank.value, plan, views);
    if (written)
      message.report = *written;
    else
      message.reason = written.error();
    auto digest = serialization::state_sha256(views, "{}");
    request(store_, patience, message)
        .then([this, stopped, digest](const checkpoint_outcome&) { finish({}, stopped, digest); },
              [this](const caf::error& reason) { finish(from_caf(reason)); });
  }

  void finish(error reason, bool stopped = false, std::string digest = {}) {
    if (std::exchange(finished_, true))
      return;
    worker_finished message;
    message.run = begin_.run;
    message.generation = begin_.generation;
    message.worker = begin_.worker;
    message.step = {step_};
    message.reason = std::move(reason);
    message.stopped = stopped;
    message.state_sha256 = std::move(digest);
    send(control_, std::move(message));
  }

  std::shared_ptr<stage> stage_;
  launch_request request_;
  run_control control_;
  checkpoint_store store_;
  begin_training begin_;
  std::uint64_t step_ = 0;
  bool finished_ = false;
};

inline void stage::start(const launch_request& request) {
  started.add(request);
  auto role = role_of(request.worker);
  {
    auto lock = std::lock_guard{mutex_};
    living_[request.worker] = {request.run, nullptr};
  }
  if (role == part::stillborn)
    return end(request.worker, 127, "exit code 127", {"libfoo.so: not found"});
  if (role == part::silent)
    return;
  auto worker = system_.spawn<played_worker>(shared_from_this(), request);
  auto lock = std::lock_guard{mutex_};
  if (auto i = living_.find(request.worker); i != living_.end())
    i->second.actor = caf::actor_cast<caf::actor>(worker);
}

/// A node that ends with its owner.
class played_node : public connected_node {
 public:
  played_node(caf::actor_system& system, const std::shared_ptr<stage>& where, const std::string& host,
              resources capacity = {4, 0})
      : handle_(spawn_node(system, {"host", host, capacity, {}}, where->factory())), address_(host + ":4000") {
    where->set_node(handle_);
  }
  ~played_node() override { caf::anon_send_exit(handle_, caf::exit_reason::user_shutdown); }

  [[nodiscard]] const node_actor& handle() const noexcept override { return handle_; }
  [[nodiscard]] std::string address() const override { return address_; }

 private:
  node_actor handle_;
  std::string address_;
};

} // namespace troupe::actors
