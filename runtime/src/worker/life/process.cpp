#include "worker/life/process.hpp"

#include "node/local_launcher.hpp"
#include "process/crash_report.hpp"
#include "process/debugger.hpp"
#include "worker/life/worker_life.hpp"

#include <troupe/runtime/node_host.hpp>
#include <troupe/runtime/process.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
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

/// Prints, at every SIGUSR1, this worker's activity and the ranks for which it waits.
void answer_questions(worker_life& life) {
  std::thread{[&life] {
    sigset_t questions;
    sigemptyset(&questions);
    sigaddset(&questions, SIGUSR1);
    for (int signal = 0; ::sigwait(&questions, &signal) == 0;)
      std::fprintf(stderr, "%s\n", life.describe().c_str());
  }}.detach();
}

/// Returns only where the bootstrap cannot be read.
error live(const std::vector<function>& functions) {
  auto text = read_bootstrap(bootstrap_fd);
  watch_lifeline(lifeline_fd);
  if (!text)
    return text.error();
  auto bootstrap = parse_bootstrap(*text);
  if (!bootstrap)
    return bootstrap.error();
  if (std::getenv(debugger_variable) != nullptr) {
    ::unsetenv(debugger_variable);
    wait_for_debugger(local_host_name());
  }
  auto hooks = worker_life::hooks{};
  hooks.released = [] { end_process(0); };
  hooks.failed = end_with;
  hooks.progressed = set_process_name;
  // A worker does not outlive its node.
  hooks.node_lost = [](const std::string& reason) {
    std::fprintf(stderr, "this worker's node is gone (%s)\n", reason.c_str());
    end_process(lifeline_exit_code);
  };
  auto life = worker_life{functions, std::move(*bootstrap), collectives::unique_fd{descriptor_fd}, std::move(hooks)};
  answer_questions(life);
  std::ignore = life.run();
  end_process(0);
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
