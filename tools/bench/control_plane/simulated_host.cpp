#include "simulated_host.hpp"

#include "net/connection.hpp"
#include "simulated_worker.hpp"

#include <troupe/actor_system.hpp>
#include <troupe/actors/node.hpp>
#include <troupe/runtime/fingerprint.hpp>
#include <troupe/runtime/keys.hpp>
#include <troupe/runtime/node_host.hpp>
#include <troupe/runtime/program.hpp>

#include <caf/all.hpp>

#include <chrono>
#include <csignal>
#include <map>
#include <mutex>
#include <utility>

namespace troupe::bench {

namespace {

/// The workers of a host. Shared by its node's launcher and the thread that kills some of them.
class crowd {
 public:
  explicit crowd(caf::actor_system& system) : system_(system) {}

  /// Before the first worker is started.
  void connect(actors::launcher_events events) { events_ = std::move(events); }
  void set_facts(host_facts facts) { facts_ = std::make_shared<const host_facts>(std::move(facts)); }

  void start(const actors::launch_request& request) {
    auto worker = spawn_simulated_worker(system_, facts_, request);
    {
      auto lock = std::lock_guard{mutex_};
      living_.emplace(request.worker, living{request.run, std::move(worker)});
    }
    events_.started({request.run, request.worker, 1'000'000 + request.worker.value});
  }

  void kill(worker_id worker) {
    auto lock = std::unique_lock{mutex_};
    auto found = living_.extract(worker);
    lock.unlock();
    if (!found.empty())
      end(worker, found.mapped());
  }

  void kill_all() {
    auto lock = std::unique_lock{mutex_};
    auto all = std::exchange(living_, {});
    lock.unlock();
    for (const auto& [worker, which] : all)
      end(worker, which);
  }

  /// Kills an arbitrary worker, as the kernel would.
  void kill_one() {
    auto lock = std::unique_lock{mutex_};
    if (living_.empty())
      return;
    const auto worker = living_.begin()->first;
    lock.unlock();
    facts_->events.write(event_kind::lost, worker.value);
    kill(worker);
  }

 private:
  struct living {
    run_id run;
    caf::actor actor;
  };

  void end(worker_id worker, const living& which) {
    caf::anon_send_exit(which.actor, caf::exit_reason::kill);
    events_.ended({which.run, worker, 128 + SIGKILL, "killed by signal 9 (SIGKILL)", {}});
  }

  caf::actor_system& system_;
  actors::launcher_events events_;
  std::shared_ptr<const host_facts> facts_;
  std::mutex mutex_;
  std::map<worker_id, living> living_;
};

class simulated_launcher : public actors::process_launcher {
 public:
  explicit simulated_launcher(std::shared_ptr<crowd> workers) : workers_(std::move(workers)) {}

  std::function<expected<actors::found_program>()> search(const open_run& request) override {
    return [path = request.program_path]() -> expected<actors::found_program> { return actors::found_program{path}; };
  }
  void open(const run_id&, const actors::found_program&) override {}
  void start(const actors::launch_request& request) override { workers_->start(request); }
  void kill(const run_id&) override { workers_->kill_all(); }
  void kill(const run_id&, worker_id worker) override { workers_->kill(worker); }
  expected<actors::process_sample> sample(const run_id&, worker_id) override { return waiting(); }
  expected<actors::process_sample> sample_node() override { return waiting(); }
  void close(const run_id&) override {}
  void end_group(const std::string&) override {}
  std::map<std::string, std::size_t> end_waiting_but(const std::string&) override { return {}; }

 private:
  /// A simulated worker that is silent waits for a processor: nothing else keeps it from its beats.
  static actors::process_sample waiting() {
    const auto now = std::chrono::steady_clock::now();
    return {now, 'R', {}, now.time_since_epoch()};
  }

  std::shared_ptr<crowd> workers_;
};

} // namespace

void run_host(const host_setup& setup) {
  init_meta_objects();
  caf::actor_system_config config;
  config.set("caf.scheduler.policy", "sharing");
  config.set("caf.scheduler.max-threads", 2);
  runtime::secure(config, value_or_throw(runtime::loopback_keys(setup.keys)));
  caf::actor_system system{config};
  auto workers = std::make_shared<crowd>(system);
  auto node =
      actors::spawn_node(system, {runtime::local_host_name(), "127.0.0.1", {setup.capacity, 0}, {}},
                         [&workers](actors::launcher_events events) -> std::unique_ptr<actors::process_launcher> {
                           workers->connect(std::move(events));
                           return std::make_unique<simulated_launcher>(workers);
                         });
  workers->set_facts({node, runtime::local_host_name(), value_or_throw(runtime::own_program()).build_id,
                      to_json(runtime::take_fingerprint()), setup.events});
  setup.events.write(event_kind::listens, value_or_throw(runtime::publish(node, {"127.0.0.1", 0})));
  for (char command = 0; ::read(setup.commands, &command, 1) == 1;)
    workers->kill_one();
  // The node would wait for its driver.
  ::_exit(0);
}

} // namespace troupe::bench
