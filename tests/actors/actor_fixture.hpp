#pragma once

#include <troupe/actors/decisions/join_handshake.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/actors/handles.hpp>
#include <troupe/actors/node.hpp>
#include <troupe/actors/process_launcher.hpp>
#include <troupe/actors/trainer.hpp>
#include <troupe/collectives/summation_tree.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <troupe/serialization/checkpoint/directory.hpp>

#include "scratch.hpp"

#include <caf/all.hpp>

#include <algorithm>
#include <atomic>
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

/// Troupe's actors in one process, without sockets and processes: a launcher whose workers are actors that follow a
/// script.
namespace troupe::actors {

/// A test that waits longer than this has failed.
inline constexpr auto patience = std::chrono::seconds{60};

/// An actor system that knows Troupe's types.
class actor_fixture {
 public:
  actor_fixture() : system_((init(), config_)), self_(system_) {}

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
      init_meta_objects();
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

/// What a fake worker does.
enum class worker_script {
  /// Joins, agrees, trains some steps, takes a checkpoint, returns.
  trains,
  /// As above, but trains until it is told to stop.
  until_stopped,
  /// Throws after the third step; the others wait for it until they are cut off, and go on with who is left.
  throws,
  waits_for_others,
  /// Stands after the third step until it is in a later generation of `fake_node_processes::group` workers.
  waits_for_help,
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

/// The processes of one node, fake. Shared by the test, the launcher and the workers.
class fake_node_processes : public std::enable_shared_from_this<fake_node_processes> {
 public:
  fake_node_processes(caf::actor_system& system, worker_script everybody) : system_(system), everybody_(everybody) {}

  /// What one of the workers does instead.
  void set_script(worker_id worker, worker_script script) { scripts_[worker] = script; }

  [[nodiscard]] worker_script script_of(worker_id worker) const {
    auto i = scripts_.find(worker);
    return i == scripts_.end() ? everybody_ : i->second;
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

  /// The state in which its process is sampled from now on.
  void show(worker_id worker, char state) {
    auto lock = std::lock_guard{mutex_};
    states_[worker] = state;
  }

  [[nodiscard]] process_sample sample(worker_id worker) {
    sampled.add(worker);
    auto lock = std::lock_guard{mutex_};
    process_sample result;
    result.when = std::chrono::steady_clock::now();
    auto i = states_.find(worker);
    result.state = i == states_.end() ? 'S' : i->second;
    return result;
  }

  [[nodiscard]] process_sample sample_node() {
    process_sample result;
    result.when = std::chrono::steady_clock::now();
    result.state = 'S';
    // As if its threads had waited for a processor all the time.
    if (is_node_starved)
      result.run_delay = result.when.time_since_epoch();
    return result;
  }

  /// The node's actor makes no progress until it is thawed, as if its process were stopped.
  void freeze() {
    node_actor node;
    {
      auto lock = std::lock_guard{mutex_};
      frozen_ = true;
      node = node_;
    }
    open_run request;
    request.run = freezing_run();
    caf::anon_send(node, request, run_control{}, collectives_actor{}, checkpoint_store{});
    stood.wait_for(1);
  }
  void thaw() {
    auto lock = std::lock_guard{mutex_};
    frozen_ = false;
    thawed_.notify_all();
  }
  void stand_while_frozen() {
    stood.add(true);
    auto lock = std::unique_lock{mutex_};
    thawed_.wait_for(lock, patience, [this] { return !frozen_; });
  }
  /// Opening this one makes the node stand.
  [[nodiscard]] static run_id freezing_run() { return {"freezes"}; }

  /// So many processes of a group wait for another run.
  void set_waiting(const std::string& group, std::size_t count) {
    auto lock = std::lock_guard{mutex_};
    waiting_[group] = count;
  }
  [[nodiscard]] std::map<std::string, std::size_t> end_waiting_but(const std::string& group) {
    auto lock = std::lock_guard{mutex_};
    auto kept = waiting_.extract(group);
    auto result = std::exchange(waiting_, {});
    if (kept)
      waiting_.insert(std::move(kept));
    return result;
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

  void kill(worker_id worker) {
    if (unkillable_ != worker)
      end(worker, 137, "killed by signal 9 (SIGKILL)");
  }
  void kill_all() {
    for (auto worker : living())
      kill(worker);
  }
  /// Its process is in uninterruptible sleep.
  void cannot_be_killed(worker_id worker) { unkillable_ = worker; }

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
  record<worker_id> killed_one;
  record<worker_id> sampled;
  record<bool> stood;
  record<run_id> closed;
  record<launch_request> started;
  record<std::string> ended_groups;
  record<begin_training> begun;
  /// What opening begins with; may be empty.
  std::function<void()> on_open;
  /// What opening and starting fail with.
  error open_error;
  error start_error;
  std::atomic<bool> is_node_starved = false;
  /// How many steps a run has.
  std::uint64_t steps = 5;
  /// How many workers those want to be that wait for help.
  std::uint32_t group = 2;

 private:
  struct process {
    run_id run;
    caf::actor actor;
  };

  caf::actor_system& system_;
  worker_script everybody_;
  std::map<worker_id, worker_script> scripts_;
  std::optional<worker_id> unkillable_;
  std::mutex mutex_;
  node_actor node_;
  launcher_events events_;
  std::map<worker_id, process> living_;
  std::map<std::string, std::size_t> waiting_;
  std::map<worker_id, char> states_;
  bool frozen_ = false;
  std::condition_variable thawed_;
};

class fake_launcher : public process_launcher {
 public:
  explicit fake_launcher(std::shared_ptr<fake_node_processes> where) : processes_(std::move(where)) {}
  ~fake_launcher() override { processes_->disconnect(); }

  std::function<expected<found_program>()> search(const open_run& request) override {
    if (request.run == fake_node_processes::freezing_run())
      processes_->stand_while_frozen();
    return [processes = processes_, request]() -> expected<found_program> {
      if (request.run == fake_node_processes::freezing_run())
        return fail(errc::not_found, "no such program");
      processes->opened.add(request);
      if (processes->on_open)
        processes->on_open();
      if (processes->open_error.code != errc::none)
        return fail(processes->open_error);
      return found_program{"/there" + request.program_path};
    };
  }

  void open(const run_id& /*run*/, const found_program& /*program*/) override {}

  void start(const launch_request& request) override { processes_->start(request); }

  void kill(const run_id& run) override {
    processes_->killed.add(run);
    processes_->kill_all();
  }

  void kill(const run_id&, worker_id worker) override {
    processes_->killed_one.add(worker);
    processes_->kill(worker);
  }

  expected<process_sample> sample(const run_id&, worker_id worker) override { return processes_->sample(worker); }
  expected<process_sample> sample_node() override { return processes_->sample_node(); }

  void close(const run_id& run) override { processes_->closed.add(run); }
  void end_group(const std::string& group) override { processes_->ended_groups.add(group); }
  std::map<std::string, std::size_t> end_waiting_but(const std::string& group) override {
    return processes_->end_waiting_but(group);
  }

 private:
  std::shared_ptr<fake_node_processes> processes_;
};

inline launcher_factory fake_node_processes::factory() {
  return [me = shared_from_this()](launcher_events events) -> std::unique_ptr<process_launcher> {
    me->connect(std::move(events));
    return std::make_unique<fake_launcher>(me);
  };
}

using fake_worker_interface = worker_actor::extend<caf::result<void>(run_control, collectives_actor, checkpoint_store)>;

/// A worker process, as far as the other actors see it.
class fake_worker : public fake_worker_interface::base {
 public:
  fake_worker(caf::actor_config& cfg, std::shared_ptr<fake_node_processes> where, launch_request request)
      : fake_worker_interface::base(cfg), processes_(std::move(where)), request_(std::move(request)) {}

  behavior_type make_behavior() override {
    join();
    return {
        [this](const begin_training& message) { begin(message); },
        [this](const control_command& command) { obey(command); },
        [this](const abort_training& message) {
          aborted_ = std::max(aborted_, message.generation);
          if (has_state_ && message.generation >= place_.generation)
            report(message.reason);
        },
        [this](const release_worker&) { processes_->end(request_.worker, 0, "exit code 0"); },
        [](const activity_question&) { return activity_answer{"a fake worker"}; },
        [this](const run_control& control, const collectives_actor&, const checkpoint_store& store) {
          control_ = control;
          store_ = store;
        },
    };
  }

 private:
  [[nodiscard]] worker_script script() const { return processes_->script_of(request_.worker); }

  void join() {
    auto secret = script() == worker_script::impostor ? "not the secret" : request_.secret;
    auto hello = join_request{request_.run, request_.worker, serialization::random_hex(16)};
    auto node = processes_->node();
    request(node, patience, hello)
        .then(
            [this, node, hello, secret](const join_challenge& challenge) {
              if (script() != worker_script::impostor && !verify_node(secret, hello, challenge))
                return leave("the node does not know the secret");
              auto proof = make_proof(secret, join_role::worker, hello.run, hello.worker, challenge.nonce);
              request(node, patience, join_proof{hello.run, hello.worker, proof},
                      caf::actor_cast<driver_follower>(this))
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

  void leave(const std::string& why) { processes_->end(request_.worker, 1, "exit code 1", {why}); }

  void say_ready() {
    worker_ready ready;
    ready.run = request_.run;
    ready.worker = request_.worker;
    ready.pid = 1000 + request_.worker.value;
    ready.host = "host of " + std::to_string(request_.worker.value);
    ready.build_id = script() == worker_script::other_build ? "decaf" : "c0ffee";
    ready.numerics = R"({"cpu":"v3"})";
    request(control_, patience, ready, caf::actor_cast<worker_actor>(this))
        .then([this] { beat(); }, [this](const caf::error& reason) { leave(from_caf(reason).message); });
  }

  void beat() {
    if (auto node = processes_->node())
      caf::anon_send(node, worker_beat{request_.run, request_.worker, place_.generation, {step_}, ++beats_});
    run_delayed(std::chrono::milliseconds{200}, [this] { beat(); });
  }

  void begin(const begin_training& message) {
    processes_->begun.add(message);
    begin_ = message;
    place_ = message.place;
    step_ = message.resume.step.value;
    // A joiner has no place yet, and gets the state of the others with it.
    has_state_ = place_.generation != generation_id{};
    processes_->write({request_.run, request_.worker, 0, {"hello from rank " + std::to_string(place_.rank.value)}});
    propose();
  }

  void propose() {
    run_plan plan;
    plan.run = begin_.run;
    plan.generation = place_.generation;
    plan.worker = begin_.worker;
    plan.steps = steps();
    plan.batch_samples = script() == worker_script::disagrees ? 65 : 64;
    plan.data_samples = 1797;
    plan.data_fingerprint = "digits";
    plan.tensors = "w f32 [100]";
    request(control_, caf::infinite, plan)
        .then(
            [this](const plan_accepted&) {
              agreed_ = true;
              has_state_ ? train() : report({});
            },
            [this](const caf::error& reason) { fail(from_caf(reason)); });
  }

  [[nodiscard]] std::uint64_t steps() const {
    return begin_.settings.steps > 0 ? begin_.settings.steps : processes_->steps;
  }

  /// Whether this one stands after the third step.
  [[nodiscard]] bool stands() const {
    switch (script()) {
    case worker_script::throws:
    case worker_script::dies:
      return true;
    case worker_script::waits_for_others:
      return place_.generation == generation_id{1};
    case worker_script::waits_for_help:
      return place_.generation == generation_id{1} || place_.world_size < processes_->group;
    case worker_script::trains:
    case worker_script::until_stopped:
    case worker_script::silent:
    case worker_script::stillborn:
    case worker_script::other_build:
    case worker_script::impostor:
    case worker_script::disagrees:
      return false;
    }
    return false;
  }

  /// Makes of `go_on` what does nothing once this generation is over.
  std::function<void()> unless_regrouped(std::function<void()> go_on) {
    return [this, go_on = std::move(go_on), generation = place_.generation] {
      if (!reporting_ && generation == place_.generation)
        go_on();
    };
  }

  std::function<void(const caf::error&)> fail_unless_regrouped() {
    return [this, generation = place_.generation](const caf::error& reason) {
      if (!reporting_ && generation == place_.generation)
        fail(from_caf(reason));
    };
  }

  void train() {
    metrics_batch batch;
    batch.run = begin_.run;
    batch.worker = begin_.worker;
    batch.number = ++batches_;
    batch.rank = place_.rank;
    auto third = std::min(steps(), begin_.resume.step.value + 3);
    for (auto last = stands() ? third : steps(); step_ < last;) {
      ++step_;
      batch.rows.push_back({{step_}, step_, 0, {{"loss", 1.0 / static_cast<double>(step_)}}});
      batch.ledger.push_back({{step_},
                              place_.generation,
                              collectives::owned_shards(begin_.settings.shards, place_.world_size, place_.rank.value)});
    }
    batch.applied = {step_};
    request(control_, patience, batch).then(unless_regrouped([this] { after_training(); }), fail_unless_regrouped());
  }

  void after_training() {
    auto rank = "rank " + std::to_string(place_.rank.value);
    if (script() == worker_script::throws)
      return finish({errc::user_error, rank + " after step 3: out of range"});
    if (script() == worker_script::dies)
      return processes_->end(request_.worker, 139, "killed by signal 11 (SIGSEGV)", {"its last line"});
    if (script() == worker_script::until_stopped ? stop_asked_ : !stands())
      return save_and_finish(stop_asked_);
    stands_between_steps_ = true;
    if (regroup_asked_ == place_.generation)
      report({});
  }

  void obey(const control_command& command) {
    commands_ = std::max(commands_, command.sequence);
    if (std::holds_alternative<stop_command>(command.what))
      stop_asked_ = true;
    const auto* regroups = std::get_if<regroup_command>(&command.what);
    if (regroups != nullptr)
      regroup_asked_ = regroups->generation;
    if (!stands_between_steps_ || !has_state_ || reporting_ || finished_)
      return;
    if (std::holds_alternative<stop_command>(command.what) && script() == worker_script::until_stopped)
      save_and_finish(true);
    if (regroups != nullptr && regroups->generation == place_.generation)
      report({});
  }

  /// The group is gone, or there is to be another one.
  void report(error reason) {
    if (finished_ || std::exchange(reporting_, true))
      return;
    regroup_report message;
    message.run = begin_.run;
    message.generation = place_.generation;
    message.worker = begin_.worker;
    message.number = ++reports_;
    if (has_state_ && reason.code == errc::none)
      message.position = worker_position::between_steps{{{step_}, commands_, 0}};
    else if (has_state_)
      message.position = worker_position::in_step{{{step_}, commands_, 0}};
    message.reason = std::move(reason);
    request(control_, caf::infinite, message)
        .then(
            [this](const next_generation& next) {
              reporting_ = false;
              go_on(next);
            },
            [this](const caf::error& reason) {
              reporting_ = false;
              finish(from_caf(reason));
            });
  }

  void go_on(const next_generation& next) {
    if (const auto* last = std::get_if<save_and_leave>(&next.what)) {
      auto copy = head_of_part(0, 1);
      copy.attempt = serialization::first_last_copy + place_.rank.value;
      return save(std::move(copy), [this, reason = last->reason](const std::string&) { finish(reason); });
    }
    const auto* member = std::get_if<member_place>(&next.what);
    if (member == nullptr) {
      finished_ = true;
      return;
    }
    place_ = member->place;
    has_state_ = true;
    stands_between_steps_ = false;
    step_ = member->commit_point.value;
    if (aborted_ >= place_.generation)
      return report({errc::aborted, "the group is gone again"});
    agreed_ ? train() : propose();
  }

  void fail(error reason) {
    if (reason.code == errc::aborted || reason.code == errc::stale_generation)
      report(std::move(reason));
    else
      finish(std::move(reason));
  }

  [[nodiscard]] checkpoint_part head_of_part(std::uint32_t rank, std::uint32_t world_size) const {
    checkpoint_part result;
    result.run = begin_.run;
    result.generation = place_.generation;
    result.step = {step_};
    result.attempt = 1;
    result.rank = {rank};
    result.world_size = world_size;
    return result;
  }

  /// `done` gets the digest of the state.
  void save(checkpoint_part message, const std::function<void(const std::string&)>& done) {
    auto state = serialization::sample_state{{{"w", dtype::f32, {100}}}, 7};
    message.tensors = state.specs();
    message.values_json = "{}";
    auto plan = serialization::plan_chunks(message.tensors, message.world_size);
    auto directory = std::filesystem::path{begin_.settings.directory} / "checkpoints" /
                     serialization::temporary_name({message.run, message.step, message.generation, message.attempt});
    auto views = state.views();
    auto written = serialization::write_part(directory, message.rank.value, plan, views);
    if (written)
      message.report = *written;
    else
      message.reason = written.error();
    auto digest = serialization::state_sha256(views, "{}");
    request(store_, patience, message)
        .then([done, digest](const checkpoint_outcome&) { done(digest); }, fail_unless_regrouped());
  }

  void save_and_finish(bool stopped) {
    save(head_of_part(place_.rank.value, place_.world_size),
         [this, stopped, generation = place_.generation](const std::string& digest) {
           if (!reporting_ && generation == place_.generation)
             finish({}, stopped, digest);
         });
  }

  void finish(error reason, bool stopped = false, std::string digest = {}) {
    if (std::exchange(finished_, true))
      return;
    worker_finished message;
    message.run = begin_.run;
    message.generation = place_.generation;
    message.worker = begin_.worker;
    message.step = {step_};
    message.reason = std::move(reason);
    message.stopped = stopped;
    message.state_sha256 = std::move(digest);
    send(control_, std::move(message));
  }

  std::shared_ptr<fake_node_processes> processes_;
  launch_request request_;
  run_control control_;
  checkpoint_store store_;
  begin_training begin_;
  group_place place_;
  generation_id aborted_;
  generation_id regroup_asked_;
  std::uint64_t commands_ = 0;
  std::uint64_t step_ = 0;
  std::uint64_t beats_ = 0;
  std::uint64_t batches_ = 0;
  std::uint64_t reports_ = 0;
  bool has_state_ = false;
  bool agreed_ = false;
  bool stop_asked_ = false;
  bool reporting_ = false;
  bool stands_between_steps_ = false;
  bool finished_ = false;
};

inline void fake_node_processes::start(const launch_request& request) {
  auto script = script_of(request.worker);
  launcher_events events;
  {
    auto lock = std::lock_guard{mutex_};
    events = events_;
    if (start_error.code == errc::none)
      living_[request.worker] = {request.run, nullptr};
  }
  if (start_error.code != errc::none)
    return events.started({request.run, request.worker, fail(start_error)});
  events.started({request.run, request.worker, 1000 + request.worker.value});
  started.add(request);
  if (script == worker_script::stillborn)
    return end(request.worker, 127, "exit code 127", {"libfoo.so: not found"});
  if (script == worker_script::silent)
    return;
  auto worker = system_.spawn<fake_worker>(shared_from_this(), request);
  auto lock = std::lock_guard{mutex_};
  if (auto i = living_.find(request.worker); i != living_.end())
    i->second.actor = caf::actor_cast<caf::actor>(worker);
}

/// A node that ends with its owner.
class fake_node : public connected_node {
 public:
  fake_node(caf::actor_system& system, const std::shared_ptr<fake_node_processes>& where, const std::string& host,
            resources capacity = {4, 0})
      : handle_(spawn_node(system, {"host", host, std::move(capacity), {}}, where->factory())),
        address_(host + ":4000") {
    where->set_node(handle_);
  }
  ~fake_node() override { caf::anon_send_exit(handle_, caf::exit_reason::user_shutdown); }

  [[nodiscard]] const node_actor& handle() const noexcept override { return handle_; }
  [[nodiscard]] std::string address() const override { return address_; }

 private:
  node_actor handle_;
  std::string address_;
};

} // namespace troupe::actors
