// Workers that a debugger holds, and training in the driver's process. The test's own thread is the debugger.
#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <thread>

using namespace troupe::testing;

namespace {

/// Traces a process and holds all its threads, as a debugger does at a breakpoint; detaches at its end. Used by one
/// thread.
class debugger {
 public:
  explicit debugger(pid_t pid) {
    for (const auto& entry : std::filesystem::directory_iterator{"/proc/" + std::to_string(pid) + "/task"}) {
      const auto thread = static_cast<pid_t>(std::stol(entry.path().filename().string()));
      if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0)
        threads_.push_back(thread);
    }
    hold();
  }
  debugger(const debugger&) = delete;
  debugger& operator=(const debugger&) = delete;
  ~debugger() {
    if (is_running_)
      hold();
    for (auto thread : threads_)
      ::ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
  }

  [[nodiscard]] bool holds() const noexcept { return !threads_.empty(); }

  /// Lets the process run, and stays attached.
  void resume() {
    for (auto thread : threads_)
      ::ptrace(PTRACE_CONT, thread, nullptr, nullptr);
    is_running_ = true;
  }

 private:
  void hold() {
    for (auto thread : threads_)
      if (::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0)
        ::waitpid(thread, nullptr, __WALL);
  }

  std::vector<pid_t> threads_;
  bool is_running_ = false;
};

/// A run without an end, until it is interrupted.
std::vector<std::string> endless(const scratch_runs& here, std::vector<std::string> more) {
  more.insert(more.begin(), {"--steps", "100000000"});
  return here.charlm("run", std::move(more));
}

/// Ends the run, and compares its bits with those of an undisturbed run of as many steps.
void end_and_compare(scratch_runs& here, child_process& driver) {
  driver.signal_group(SIGINT);
  const auto status = driver.wait();
  INFO(driver.err());
  CHECK(status == exit_status{130, {}});
  const auto result = here.result("run");
  CHECK(result["failures"].empty());
  const auto steps = std::to_string(result["steps"].get<std::uint64_t>());
  REQUIRE(here.run(here.charlm("undisturbed", {"--workers", "1", "--steps", steps})).status == exit_status{0, {}});
  CHECK(result["state_sha256"] == here.result("undisturbed")["state_sha256"]);
}

} // namespace

TEST_CASE("a worker that a debugger holds is waited for, and the bits are those of an undisturbed run") {
  scratch_runs here;
  auto driver = here.start(endless(here, {"--workers", "3"}));
  here.await_step(driver, "run");
  const auto workers = here.workers();
  REQUIRE(workers.size() == 3);
  {
    const auto gdb = debugger{workers[1]};
    if (!gdb.holds()) {
      std::puts("SKIP: this process may not trace others");
      CHECK(driver.running());
      return;
    }
    const auto held = "is held by a debugger (process " + std::to_string(::getpid()) + ")";
    here.await(driver, [&] { return driver.err().find(held) != std::string::npos; });
    // Nobody trains, and nobody is given up.
    CHECK(here.workers() == workers);
  }
  here.await(driver, [&] { return driver.err().find("answers again") != std::string::npos; });
  here.await_step(driver, "run", here.last_step("run"));
  CHECK(here.workers() == workers);
  end_and_compare(here, driver);
}

TEST_CASE(
    "who looks at a worker for longer than CAF's timeout of connections, or at the driver that trains, loses nothing") {
  if (std::getenv("TROUPE_LONG_TESTS") == nullptr) {
    std::puts("SKIP: takes 42 s; the long form does it");
    return;
  }
  scratch_runs here;
  scratch_runs alone;
  auto driver = here.start(endless(here, {"--workers", "2"}));
  auto in_process = alone.start(endless(alone, {"--workers", "0"}));
  here.await_step(driver, "run");
  alone.await_step(in_process, "run");
  const auto workers = here.workers();
  REQUIRE(workers.size() == 2);
  {
    const auto gdb = debugger{workers[1]};
    if (!gdb.holds()) {
      std::puts("SKIP: this process may not trace others");
      CHECK(driver.running());
      return;
    }
    in_process.signal(SIGSTOP);
    // Time is what is tested: 30 s is CAF's timeout, and every 10 s it looks.
    std::this_thread::sleep_for(std::chrono::seconds{42});
    in_process.signal(SIGCONT);
  }
  here.await_step(driver, "run", here.last_step("run"));
  alone.await_step(in_process, "run", alone.last_step("run"));
  CHECK(here.workers() == workers);
  end_and_compare(here, driver);
  end_and_compare(alone, in_process);
}

TEST_CASE("a worker waits for a debugger before it joins, and its name tells rank, step and run") {
  scratch_runs here;
  auto driver = here.start(endless(here, {"--workers", "2", "--debug-rank", "1"}));
  static const auto mark = std::string{"[rank 1] waits for a debugger: gdb -p "};
  here.await(driver, [&] { return driver.err().find(", on host") != std::string::npos; });
  const auto text = driver.err();
  REQUIRE(text.find(mark) != std::string::npos);
  const auto pid = static_cast<pid_t>(std::stol(text.substr(text.find(mark) + mark.size())));
  {
    auto gdb = debugger{pid};
    if (!gdb.holds()) {
      std::puts("SKIP: this process may not trace others");
      CHECK(driver.running());
      return;
    }
    CHECK(here.last_step("run") == 0);
    gdb.resume();
    here.await_step(driver, "run");
  }
  here.await(driver, [&] {
    const auto name = read_file("/proc/" + std::to_string(pid) + "/comm");
    return name.starts_with("r1 s") && name.find(" run") != std::string::npos;
  });
  end_and_compare(here, driver);
}

TEST_CASE("in the driver's process the bits are those of two workers, and a run goes on where it was") {
  scratch_runs here;
  auto two = here.run(here.charlm("two", {"--workers", "2"}));
  REQUIRE(two.status == exit_status{0, {}});
  auto half = here.run(here.charlm("run", {"--workers", "2", "--steps", "6"}));
  REQUIRE(half.status == exit_status{0, {}});
  auto driver = here.start(here.charlm("run", {"--workers", "0"}));
  auto workers = std::size_t{0};
  becomes_true([&] {
    workers = std::max(workers, here.workers().size());
    return !driver.running();
  });
  INFO(driver.err());
  CHECK(driver.wait() == exit_status{0, {}});
  CHECK(workers == 0);
  CHECK(here.result("run")["state_sha256"] == here.result("two")["state_sha256"]);
  CHECK(here.result("run")["resumed_from_step"] == 6);
}

TEST_CASE("Ctrl-C finishes the step in the driver's process, too") {
  scratch_runs here;
  auto driver = here.start(here.charlm("run", {"--steps", "100000000", "--workers", "0"}));
  here.await_step(driver, "run");
  driver.signal_group(SIGINT);
  const auto status = driver.wait();
  INFO(driver.err());
  CHECK(status == exit_status{130, {}});
  const auto result = here.result("run");
  CHECK(result["status"] == "stopped");
  CHECK(stored_state(std::filesystem::path{result["latest_checkpoint"].get<std::string>()}) ==
        result["state_sha256"].get<std::string>());
}

TEST_CASE(
    "a training function that throws, hangs or crashes in the driver's process ends as a user of a debugger expects") {
  scratch_runs here;
  auto misbehaving = [&](const std::string& how) {
    return here.start({misbehaving_program(), how, "0", here.path("runs").string(), "run"});
  };
  SUBCASE("it throws") {
    auto driver = misbehaving("throw");
    CHECK(driver.wait() == exit_status{1, {}});
    CHECK(driver.err().find("the gradient is on holiday") != std::string::npos);
  }
  SUBCASE("it hangs, and the second Ctrl-C ends the run") {
    auto driver = misbehaving("sleep");
    here.await_step(driver, "run", 1);
    driver.signal_group(SIGINT);
    here.await(driver, [&] { return driver.err().find("stopping after this step") != std::string::npos; });
    driver.signal_group(SIGINT);
    const auto status = driver.wait();
    INFO(driver.err());
    CHECK(status == exit_status{130, {}});
    CHECK(driver.err().find("does not return") != std::string::npos);
  }
  SUBCASE("it aborts: the process is gone") {
    auto driver = misbehaving("abort");
    CHECK(driver.wait() == exit_status{{}, SIGABRT});
  }
}
