#include "worker/life/process.hpp"

#include "node/local_launcher.hpp"
#include "process/crash_report.hpp"
#include "process/debugger.hpp"
#include "worker/life/worker_life.hpp"

#include <troupe/runtime/node_host.hpp>
#include <troupe/runtime/process.hpp>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

/// Ends the process at once, without waiting for other threads. Output that is not flushed here is lost.
[[noreturn]] void end_process(int code) {
  std::fflush(nullptr);
  ::_exit(code);
}

[[noreturn]] void end_with(const error& reason) {
  std::fprintf(stderr, "%s\n", reason.message.c_str());
  end_process(1);
}

/// Keeps SIGUSR1 for `answer_questions`: before any thread is started, so that all have it blocked.
void block_questions() {
  sigset_t questions;
  sigemptyset(&questions);
  sigaddset(&questions, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &questions, nullptr);
}

/// The life that a worker process leads now, for its threads.
class present_life {
 public:
  /// Runs it to its end.
  void lead(worker_life& life) {
    set(&life);
    std::ignore = life.run();
    set(nullptr);
  }

  [[nodiscard]] std::string describe() {
    auto lock = std::lock_guard{mutex_};
    return life_ == nullptr ? "waits for another run" : life_->describe();
  }

 private:
  void set(worker_life* life) {
    auto lock = std::lock_guard{mutex_};
    life_ = life;
  }

  std::mutex mutex_;
  worker_life* life_ = nullptr;
};

/// Prints, at every SIGUSR1, this worker's activity and the ranks for which it waits. `life` outlives the process's
/// other threads.
void answer_questions(present_life& life) {
  std::thread{[&life] {
    sigset_t questions;
    sigemptyset(&questions);
    sigaddset(&questions, SIGUSR1);
    for (int signal = 0; ::sigwait(&questions, &signal) == 0;)
      std::fprintf(stderr, "%s\n", life.describe().c_str());
  }}.detach();
}

/// What a worker process does when its life ends, or its node.
worker_life::hooks make_hooks(bool is_reusable) {
  auto hooks = worker_life::hooks{};
  // A reusable process closes its connection to the node itself after that; its lifeline tells whether the node lives.
  const auto is_released = std::make_shared<std::atomic<bool>>(false);
  hooks.released = [is_reusable, is_released] {
    if (!is_reusable)
      end_process(0);
    *is_released = true;
  };
  hooks.failed = end_with;
  hooks.progressed = set_process_name;
  // A worker does not outlive its node.
  hooks.node_lost = [is_released](const std::string& reason) {
    if (*is_released)
      return;
    std::fprintf(stderr, "this worker's node is gone (%s)\n", reason.c_str());
    end_process(lifeline_exit_code);
  };
  return hooks;
}

/// Returns only where the bootstrap cannot be read.
error live(const std::vector<function>& functions) {
  auto text = read_bootstrap(bootstrap_fd);
  watch_lifeline(lifeline_fd);
  auto descriptors = collectives::unique_fd{descriptor_fd};
  // Leaked: a thread uses it to the end.
  auto& present = *new present_life;
  answer_questions(present);
  for (;;) {
    if (!text)
      return text.error();
    auto bootstrap = parse_bootstrap(*text);
    if (!bootstrap)
      return bootstrap.error();
    if (std::getenv(debugger_variable) != nullptr) {
      ::unsetenv(debugger_variable);
      wait_for_debugger(local_host_name());
    }
    for (const auto& [name, value] : bootstrap->environment)
      ::setenv(name.c_str(), value.c_str(), 1);
    const auto is_reusable = bootstrap->is_reusable;
    // Programs that the training function starts do not get it.
    if (is_reusable)
      ::fcntl(reuse_fd, F_SETFD, FD_CLOEXEC);
    {
      auto life = worker_life{functions, std::move(*bootstrap), std::move(descriptors), make_hooks(is_reusable)};
      present.lead(life);
    }
    if (!is_reusable)
      end_process(0);
    set_process_name("idle");
    std::fflush(nullptr);
    auto next = await_next_bootstrap(reuse_fd);
    if (!next)
      end_process(0);
    text = std::move(next->text);
    descriptors = std::move(next->descriptor_socket);
  }
}

} // namespace

bool is_worker_process() noexcept {
  return std::getenv(worker_variable) != nullptr;
}

void run_worker_process(const std::vector<function>& functions) {
  report_crashes();
  // Programs that the training function starts are no workers.
  ::unsetenv(worker_variable);
  // Output goes into a pipe, where it would be kept back in blocks: late to see, and lost when the process crashes.
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
  block_questions();
  end_with(live(functions));
}

} // namespace troupe::runtime
