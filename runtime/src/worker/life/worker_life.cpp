#include "worker/life/worker_life.hpp"

#include "net/connection.hpp"
#include "worker/life/framework_scope.hpp"
#include "worker/life/relayed_driver_client.hpp"
#include "worker/session.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/actors/decisions/join_handshake.hpp>
#include <troupe/actors/driver_relay.hpp>
#include <troupe/actors/error_conversion.hpp>
#include <troupe/actors/worker.hpp>
#include <troupe/collectives/device.hpp>
#include <troupe/collectives/device_software.hpp>
#include <troupe/runtime/fingerprint.hpp>
#include <troupe/runtime/node_host.hpp>
#include <troupe/runtime/program.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <caf/all.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <unistd.h>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

/// How long the handshake with the node may take, each way.
constexpr auto join_limit = 10s;

/// The training thread of a worker process, started by `begin_training`.
class process_host : public actors::training_host {
 public:
  using on_progress = std::function<void(const std::string&)>;

  process_host(const std::vector<function>& functions, driver_client& driver, run_id run, worker_id worker,
               on_progress progressed)
      : functions_(functions),
        driver_(driver),
        run_(std::move(run)),
        worker_(worker),
        progressed_(std::move(progressed)) {}

  worker_beat beat() override {
    worker_beat result;
    result.run = run_;
    result.worker = worker_;
    if (auto session = current()) {
      session->beat(result);
      session->show_title();
    }
    return result;
  }

  void begin(const begin_training& message) override {
    auto lock = std::lock_guard{mutex_};
    if (session_ || released_)
      return;
    session_ = std::make_shared<train_context::impl>(message, driver_);
    session_->on_title(progressed_);
    if (early_abort_)
      session_->abort(*early_abort_);
    thread_ = std::thread{[this, session = session_, name = message.settings.function] { train(*session, name); }};
  }

  void command(const control_command& message) override {
    if (auto session = current())
      session->command(message);
  }

  void abort(const abort_training& message) override {
    auto lock = std::lock_guard{mutex_};
    if (session_)
      session_->abort(message);
    else
      early_abort_ = message;
  }

  void release() override {
    {
      auto lock = std::lock_guard{mutex_};
      released_ = true;
    }
    changed_.notify_all();
  }

  std::string describe() override {
    auto session = current();
    return session ? session->describe() : "training has not begun";
  }

  void wait_for_release() {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [this] { return released_; });
  }

  /// Aborts present and later operations of the training thread, and stops waiting for a release.
  void cancel() {
    const auto now = beat();
    abort({run_, now.generation, {errc::stopped, "this worker is ended"}});
    release();
  }

  /// Waits for the training function.
  void join() {
    if (thread_.joinable())
      thread_.join();
  }

 private:
  std::shared_ptr<train_context::impl> current() {
    auto lock = std::lock_guard{mutex_};
    return session_;
  }

  void train(train_context::impl& session, const std::string& name) {
    prepare_arithmetic_thread();
    auto found = std::ranges::find(functions_, name, &function::name);
    auto message = session.run([&](train_context& ctx) {
      if (found == functions_.end())
        throw exception{errc::invalid_argument,
                        "the program has no training function '" + name + "' in its worker processes"};
      session.name_frameworks(describe_frameworks(*found));
      run_with_frameworks(*found, ctx);
    });
    std::fflush(nullptr);
    driver_.finish(message);
  }

  const std::vector<function>& functions_;
  driver_client& driver_;
  run_id run_;
  worker_id worker_;
  on_progress progressed_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<train_context::impl> session_;
  std::optional<abort_training> early_abort_;
  std::thread thread_;
  bool released_ = false;
};

/// Shows the node that this process knows the run's secret, and has the node show the same. `relay` knows the driver
/// then.
void join(caf::scoped_actor& self, const actors::node_actor& node, const worker_bootstrap& bootstrap,
          const actors::driver_relay& relay) {
  auto request = join_request{bootstrap.run, bootstrap.worker, serialization::random_hex(16)};
  join_challenge challenge;
  self->request(node, join_limit, request)
      .receive([&](join_challenge& answer) { challenge = std::move(answer); },
               [](const caf::error& reason) { throw exception{actors::from_caf(reason)}; });
  value_or_throw(actors::verify_node(bootstrap.secret, request, challenge));
  auto proof =
      actors::make_proof(bootstrap.secret, actors::join_role::worker, bootstrap.run, bootstrap.worker, challenge.nonce);
  self->request(node, join_limit, join_proof{bootstrap.run, bootstrap.worker, std::move(proof)},
                caf::actor_cast<actors::driver_follower>(relay))
      .receive([&](const actors::run_control& control, const actors::collectives_actor& collectives,
                   const actors::checkpoint_store& store) { self->send(relay, control, collectives, store); },
               [](const caf::error& reason) { throw exception{actors::from_caf(reason)}; });
}

std::unique_ptr<caf::actor_system_config> make_config(const worker_bootstrap& bootstrap) {
  auto config = std::make_unique<caf::actor_system_config>();
  config->set("caf.scheduler.policy", "sharing");
  config->set("caf.scheduler.max-threads", 1);
  secure(*config, bootstrap.keys);
  keep_silent_connections(*config);
  return config;
}

/// The device of a worker with these GPUs.
collectives::device_info first_of(const std::vector<std::string>& gpus) {
  auto found = collectives::find_devices();
  if (!found)
    throw exception{found.error().code, "this worker is to compute on GPU " + gpus.front() + " of host " +
                                            local_host_name() + ": " + found.error().message};
  if (found->empty())
    throw exception{errc::unsatisfiable, "this worker is to compute on GPU " + gpus.front() + " of host " +
                                             local_host_name() + ", and finds no GPU there"};
  return found->front();
}

/// Adds all that determines the arithmetic of a GPU's libraries.
void add_gpu(numerics_fingerprint& fingerprint, const collectives::device_info& gpu) {
  fingerprint.values["device.capability"] = std::to_string(gpu.major) + "." + std::to_string(gpu.minor);
  const auto software = collectives::find_device_software();
  fingerprint.values["device.driver"] = software.driver;
  fingerprint.values["device.toolkit"] = software.toolkit;
  for (const auto* name : {"CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE"}) {
    const auto* value = std::getenv(name);
    fingerprint.values[std::string{"env."} + name] = value == nullptr ? "" : value;
  }
}

/// Starts the frameworks, unless an earlier life of this process has, and returns all that determines the arithmetic of
/// this process.
std::string start_frameworks(const std::vector<function>& functions, const worker_bootstrap& bootstrap) {
  const auto& gpus = bootstrap.devices;
  auto gpu = gpus.empty() ? std::nullopt : std::optional{first_of(gpus)};
  auto all = frameworks_of(functions);
  if (!bootstrap.is_reused)
    for (const auto& each : all)
      each->on_start();
  prepare_arithmetic_thread();
  auto fingerprint = take_fingerprint(gpu ? gpu->name : "cpu");
  if (gpu)
    add_gpu(fingerprint, *gpu);
  for (const auto& each : all)
    for (const auto& values : {each->numerics(), gpu ? each->gpu_numerics() : std::map<std::string, std::string>{}})
      for (const auto& [key, value] : values)
        fingerprint.values[each->name() + "." + key] = value;
  return to_json(fingerprint);
}

} // namespace

class worker_life::impl {
 public:
  impl(const std::vector<function>& functions, worker_bootstrap bootstrap, collectives::unique_fd descriptors, hooks on)
      : functions_(functions),
        bootstrap_(std::move(bootstrap)),
        descriptors_(std::move(descriptors)),
        on_(std::move(on)) {}

  expected<void> run() {
    init_meta_objects();
    const auto config = make_config(bootstrap_);
    caf::actor_system system{*config};
    auto node = connect(system, bootstrap_.node, join_limit);
    if (!node)
      return refuse(std::move(node.error()));
    caf::actor_cast<caf::abstract_actor*>(*node)->attach_functor(
        [node_lost = on_.node_lost](const caf::error& reason) { node_lost(caf::to_string(reason)); });
    auto self = caf::scoped_actor{system};
    const auto relay = actors::spawn_driver_relay(system);
    const auto driver = make_relayed_driver_client(system, relay, bootstrap_.worker, std::move(descriptors_),
                                                   {bootstrap_.run, bootstrap_.secret, bootstrap_.keys.has_value()});
    const auto host =
        std::make_shared<process_host>(functions_, *driver, bootstrap_.run, bootstrap_.worker, on_.progressed);
    auto result = expected<void>{};
    try {
      take_part(self, *node, relay, host);
      on_.released();
    } catch (const exception& x) {
      result = refuse(x.reason());
    } catch (const std::exception& x) {
      result = refuse({errc::user_error, x.what()});
    }
    set_under_way({});
    host->join();
    // The session ends with the host, before what it uses.
    end(self, std::exchange(worker_, nullptr));
    end(self, relay);
    return result;
  }

  void cancel() {
    auto lock = std::lock_guard{mutex_};
    is_cancelled_ = true;
    cancel_if_under_way();
  }

  std::string describe() {
    auto lock = std::lock_guard{mutex_};
    return under_way_.host ? under_way_.host->describe() : "has not joined its run";
  }

 private:
  /// The participation in a run, which another thread may end.
  struct participation {
    std::shared_ptr<process_host> host;
    actors::driver_relay relay;
  };

  template <class Handle>
  static void end(caf::scoped_actor& self, const Handle& who) {
    if (!who)
      return;
    self->send_exit(who, caf::exit_reason::kill);
    self->wait_for(who);
  }

  expected<void> refuse(error reason) {
    on_.failed(reason);
    return fail(std::move(reason));
  }

  void set_under_way(participation what) {
    auto lock = std::lock_guard{mutex_};
    under_way_ = std::move(what);
    if (is_cancelled_)
      cancel_if_under_way();
  }

  void cancel_if_under_way() {
    if (!under_way_.host)
      return;
    // From here on, the training thread's requests to the driver fail.
    caf::anon_send_exit(under_way_.relay, caf::exit_reason::kill);
    under_way_.host->cancel();
  }

  /// Returns when the worker is released or cancelled.
  void take_part(caf::scoped_actor& self, const actors::node_actor& node, const actors::driver_relay& relay,
                 const std::shared_ptr<process_host>& host) {
    join(self, node, bootstrap_, relay);
    set_under_way({host, relay});
    worker_ = actors::spawn_worker(self->home_system(), node, host);
    worker_ready ready;
    ready.run = bootstrap_.run;
    ready.worker = bootstrap_.worker;
    ready.pid = static_cast<std::uint32_t>(::getpid());
    ready.host = local_host_name();
    ready.build_id = value_or_throw(own_program()).build_id;
    ready.numerics = start_frameworks(functions_, bootstrap_);
    self->request(relay, caf::infinite, ready, worker_)
        .receive([] {}, [](const caf::error& reason) { throw exception{actors::from_caf(reason)}; });
    host->wait_for_release();
  }

  const std::vector<function>& functions_;
  worker_bootstrap bootstrap_;
  collectives::unique_fd descriptors_;
  hooks on_;
  /// Used by the thread in `run`.
  actors::worker_actor worker_;
  std::mutex mutex_;
  participation under_way_;
  bool is_cancelled_ = false;
};

worker_life::worker_life(const std::vector<function>& functions, worker_bootstrap bootstrap,
                         collectives::unique_fd descriptors, hooks on)
    : impl_(std::make_unique<impl>(functions, std::move(bootstrap), std::move(descriptors), std::move(on))) {}

worker_life::~worker_life() = default;

expected<void> worker_life::run() {
  return impl_->run();
}

void worker_life::cancel() {
  impl_->cancel();
}

std::string worker_life::describe() {
  return impl_->describe();
}

} // namespace troupe::runtime
