#include "node/in_process_launcher.hpp"

#include "process/crash_report.hpp"
#include "worker/life/worker_life.hpp"

#include <troupe/runtime/descriptor_broker.hpp>
#include <troupe/runtime/process_sample.hpp>
#include <troupe/runtime/program.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <mutex>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

/// How long the launcher waits at its end for a training function to return.
constexpr auto patience = 2s;

/// Fixes the number of threads of mathematical libraries as in a worker process. They have read their variables when
/// they were loaded.
void fix_numbers_of_threads() {
  for (const auto* name : thread_variables)
    ::setenv(name, "1", 0);
  using setter = void (*)(int);
  for (const auto& [name, variable] : {std::pair{"omp_set_num_threads", "OMP_NUM_THREADS"},
                                       {"openblas_set_num_threads", "OPENBLAS_NUM_THREADS"},
                                       {"MKL_Set_Num_Threads", "MKL_NUM_THREADS"}})
    if (const auto set = reinterpret_cast<setter>(::dlsym(RTLD_DEFAULT, name))) {
      const auto* number = std::getenv(variable);
      set(number == nullptr ? 1 : std::max(std::atoi(number), 1));
    }
}

/// A worker on threads of this process. Shared by its first thread and the launcher.
class threaded_worker {
 public:
  threaded_worker(function train, actors::launch_request request)
      : functions_{std::move(train)}, who_(std::move(request)) {}

  void run(const worker_entry& entry, collectives::unique_fd descriptors) {
    const auto bootstrap =
        worker_bootstrap{who_.run, who_.worker, who_.secret, entry.node(), entry.keys(), who_.devices};
    auto hooks = worker_life::hooks{};
    hooks.node_lost = [this](const std::string&) { cancel(); };
    {
      auto lock = std::lock_guard{mutex_};
      life_ = std::make_unique<worker_life>(functions_, bootstrap, std::move(descriptors), std::move(hooks));
      if (stage_ == stage::cancelled)
        life_->cancel();
    }
    result_ = life_->run();
    auto lock = std::lock_guard{mutex_};
    stage_ = stage::ended;
    ended_.notify_all();
  }

  void cancel() {
    auto lock = std::lock_guard{mutex_};
    if (stage_ == stage::under_way)
      stage_ = stage::cancelled;
    if (life_)
      life_->cancel();
  }

  [[nodiscard]] bool ends_within(std::chrono::milliseconds limit) {
    auto lock = std::unique_lock{mutex_};
    return ended_.wait_for(lock, limit, [this] { return stage_ == stage::ended; });
  }

  [[nodiscard]] const actors::launch_request& who() const noexcept { return who_; }

  /// After its end.
  [[nodiscard]] worker_ended describe_end() const {
    worker_ended result;
    result.run = who_.run;
    result.worker = who_.worker;
    result.exit_status = result_ ? 0 : 1;
    result.description = result_ ? "left the driver's process" : result_.error().message;
    return result;
  }

 private:
  enum class stage : std::uint8_t { under_way, cancelled, ended };

  std::vector<function> functions_;
  actors::launch_request who_;
  std::unique_ptr<worker_life> life_;
  expected<void> result_;
  std::mutex mutex_;
  std::condition_variable ended_;
  stage stage_ = stage::under_way;
};

class in_process_launcher : public actors::process_launcher {
 public:
  in_process_launcher(function train, std::shared_ptr<const worker_entry> entry, actors::launcher_events events)
      : train_(std::move(train)),
        entry_(std::move(entry)),
        events_(std::make_shared<actors::launcher_events>(std::move(events))),
        descriptors_(value_or_throw(descriptor_broker::make())) {}

  in_process_launcher(const in_process_launcher&) = delete;
  in_process_launcher& operator=(const in_process_launcher&) = delete;

  ~in_process_launcher() override {
    if (!worker_)
      return;
    worker_->cancel();
    if (!worker_->ends_within(patience))
      std::fputs("warning: the training function does not return, and goes on until this process ends\n", stderr);
  }

  std::function<expected<actors::found_program>()> search(const open_run& request) override {
    return [build = request.build_id]() -> expected<actors::found_program> {
      TROUPE_TRY(auto own, own_program());
      if (own.build_id != build)
        return fail(errc::program_mismatch, "a run with scaling.num_workers = 0 trains in the driver's process, and "
                                            "cannot have workers of another program");
      return actors::found_program{std::move(own.path)};
    };
  }

  void open(const run_id& /*run*/, const actors::found_program& /*program*/) override {
    // It runs already.
  }

  void start(const actors::launch_request& request) override {
    if (worker_ && !worker_->ends_within(0ms))
      return refuse(request, {errc::unsatisfiable, "the training function of the worker before has not returned, and "
                                                   "a driver's process has one at a time"});
    auto descriptors = descriptors_.add(request.run, request.worker);
    if (!descriptors)
      return refuse(request, std::move(descriptors.error()));
    fix_numbers_of_threads();
    report_crashes();
    for (const auto& [name, value] : request.environment)
      ::setenv(name.c_str(), value.c_str(), 1);
    worker_ = std::make_shared<threaded_worker>(train_, request);
    events_->started({request.run, request.worker, static_cast<std::uint32_t>(::getpid())});
    std::thread{[worker = worker_, entry = entry_, events = events_,
                 socket = std::make_shared<collectives::unique_fd>(std::move(*descriptors))] {
      worker->run(*entry, std::move(*socket));
      events->ended(worker->describe_end());
    }}.detach();
  }

  void kill(const run_id& run) override {
    descriptors_.end_run(run);
    if (worker_ && worker_->who().run == run)
      worker_->cancel();
  }

  void kill(const run_id& run, worker_id worker) override {
    if (worker_ && worker_->who().run == run && worker_->who().worker == worker)
      worker_->cancel();
  }

  expected<process_sample> sample(const run_id&, worker_id) override { return sample_process(::getpid()); }
  expected<process_sample> sample_node() override { return sample_process(::getpid()); }
  void close(const run_id& run) override { descriptors_.end_run(run); }
  // No process waits here: the only one is the driver's.
  void end_group(const std::string&) override {}
  std::map<std::string, std::size_t> end_waiting_but(const std::string&) override { return {}; }

 private:
  void refuse(const actors::launch_request& request, error reason) {
    events_->started({request.run, request.worker, fail(std::move(reason))});
  }

  function train_;
  std::shared_ptr<const worker_entry> entry_;
  std::shared_ptr<const actors::launcher_events> events_;
  descriptor_broker descriptors_;
  /// The latest one.
  std::shared_ptr<threaded_worker> worker_;
};

} // namespace

actors::launcher_factory make_in_process_launcher(function train, std::shared_ptr<const worker_entry> entry) {
  return [train = std::move(train),
          entry = std::move(entry)](actors::launcher_events events) -> std::unique_ptr<actors::process_launcher> {
    return std::make_unique<in_process_launcher>(train, entry, std::move(events));
  };
}

} // namespace troupe::runtime
