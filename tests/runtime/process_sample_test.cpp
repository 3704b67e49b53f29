#include <troupe/runtime/process_sample.hpp>

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <sched.h>
#include <string>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace troupe;
using namespace troupe::runtime;
using namespace std::chrono_literals;
using actors::silence_cause;

namespace {

/// How long the tests wait for expected events before they fail.
constexpr auto patience = 60s;

/// A fork of this program that reports when it is ready, does one thing, and never returns from it.
class child {
 public:
  explicit child(const std::function<void()>& prepare, const std::function<void()>& act) {
    int ends[2];
    REQUIRE(::pipe(ends) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      prepare();
      auto written = ::write(ends[1], "x", 1);
      if (written == 1)
        act();
      ::_exit(1);
    }
    char byte = 0;
    auto count = ::read(ends[0], &byte, 1);
    ::close(ends[0]);
    ::close(ends[1]);
    REQUIRE(count == 1);
  }

  child(const child&) = delete;
  child& operator=(const child&) = delete;

  ~child() { reap(); }

  [[nodiscard]] pid_t pid() const { return pid_; }

  void stop() const {
    ::kill(pid_, SIGSTOP);
    int status = 0;
    REQUIRE(::waitpid(pid_, &status, WUNTRACED) == pid_);
    REQUIRE(WIFSTOPPED(status));
  }

  /// Kills it and leaves it as a zombie.
  void kill() const {
    ::kill(pid_, SIGKILL);
    siginfo_t info;
    REQUIRE(::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT) == 0);
  }

  void reap() {
    if (pid_ <= 0)
      return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

void nothing() {}

[[noreturn]] void sleep_forever() {
  for (;;)
    ::pause();
}

[[noreturn]] void compute_forever() {
  for (std::atomic<std::uint64_t> i = 0;;)
    ++i;
}

/// The first processor that this program may use, for all its children.
void use_one_processor() {
  cpu_set_t mine;
  ::sched_getaffinity(0, sizeof(mine), &mine);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++i)
    if (CPU_ISSET(i, &mine))
      CPU_SET(i, &one);
  ::sched_setaffinity(0, sizeof(one), &one);
}

/// Lowers the priority so far that the process runs only when no other process wants the processor.
void step_back() {
  sched_param none{};
  ::sched_setscheduler(0, SCHED_IDLE, &none);
}

/// The parentheses and the text that looks like fields are part of the name.
void take_a_confusing_name() {
  ::prctl(PR_SET_NAME, ") R 1 (");
}

process_sample look(pid_t pid) {
  auto result = sample_process(pid);
  if (!result)
    FAIL(result.error().message);
  return *result;
}

/// Samples until the expected state is seen.
template <class Predicate>
process_sample look_until(pid_t pid, Predicate holds) {
  auto end = std::chrono::steady_clock::now() + patience;
  auto result = look(pid);
  while (!holds(result) && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
    result = look(pid);
  }
  REQUIRE(holds(result));
  return result;
}

process_sample look_until_state(pid_t pid, char state) {
  return look_until(pid, [state](const process_sample& x) { return x.state == state; });
}

silence_cause cause(const process_sample& before, const process_sample& now) {
  return actors::judge_silence({before, now}, {}, 2s, 1500ms).cause;
}

} // namespace

TEST_CASE("a sleeping process has state S and uses no processor time") {
  auto sleeper = child{nothing, sleep_forever};
  auto before = look_until_state(sleeper.pid(), 'S');
  auto now = look(sleeper.pid());
  CHECK(now.state == 'S');
  CHECK(now.cpu == before.cpu);
  CHECK(now.run_delay == before.run_delay);
  CHECK(now.when >= before.when);
  CHECK(cause(before, now) == silence_cause::hung);
}

TEST_CASE("a stopped process is seen as stopped, and as running after SIGCONT") {
  auto busy = child{nothing, compute_forever};
  auto before = look_until_state(busy.pid(), 'R');
  busy.stop();
  auto now = look(busy.pid());
  CHECK(now.state == 'T');
  CHECK(cause(before, now) == silence_cause::stopped);
  ::kill(busy.pid(), SIGCONT);
  look_until_state(busy.pid(), 'R');
}

TEST_CASE("a computing process is ready to run, and its processor time grows") {
  auto busy = child{nothing, compute_forever};
  auto before = look_until_state(busy.pid(), 'R');
  auto now = look_until(busy.pid(), [&](const process_sample& x) { return x.cpu >= before.cpu + 50ms; });
  CHECK(now.state == 'R');
}

TEST_CASE("the sampled processor time agrees with the process's own measurement") {
  auto own = [] {
    timespec used{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return std::chrono::seconds{used.tv_sec} + std::chrono::nanoseconds{used.tv_nsec};
  };
  while (own() < 200ms) {
  }
  auto before = own();
  auto now = look(::getpid());
  // The kernel reports user and system time in ticks of 10 ms, rounded down.
  CHECK(now.cpu >= before - 30ms);
  CHECK(now.cpu <= own());
}

TEST_CASE("a zombie has ended, and a reaped process is gone") {
  auto victim = child{nothing, sleep_forever};
  auto before = look(victim.pid());
  auto pid = victim.pid();
  victim.kill();
  CHECK(look(pid).state == 'Z');
  CHECK(cause(before, look(pid)) == silence_cause::dead);
  victim.reap();
  auto now = look(pid);
  CHECK(now.state == 'X');
  CHECK(now.cpu == 0s);
  CHECK_FALSE(now.run_delay);
  CHECK(cause(before, now) == silence_cause::dead);
}

TEST_CASE("a name with parentheses and fields is parsed correctly") {
  auto sleeper = child{take_a_confusing_name, sleep_forever};
  auto before = look_until_state(sleeper.pid(), 'S');
  CHECK(look(sleeper.pid()).cpu == before.cpu);
  sleeper.stop();
  CHECK(look(sleeper.pid()).state == 'T');

  auto busy = child{take_a_confusing_name, compute_forever};
  look_until(busy.pid(), [](const process_sample& x) { return x.cpu >= 50ms; });
}

TEST_CASE("a process whose first thread sleeps while others compute is ready to run") {
  auto two = child{nothing, [] {
                     auto worker = std::thread{compute_forever};
                     worker.join();
                   }};
  look_until(two.pid(), [](const process_sample& x) { return x.state == 'R' && x.cpu >= 50ms; });
  two.stop();
  CHECK(look(two.pid()).state == 'T');
}

TEST_CASE("a process whose first thread has ended lives as long as the others") {
  auto headless = child{nothing, [] {
                          std::thread{sleep_forever}.detach();
                          // Ends only this thread, without unwinding.
                          ::syscall(SYS_exit, 0);
                        }};
  auto pid = std::to_string(headless.pid());
  auto first_thread_lives = [path = "/proc/" + pid + "/task/" + pid + "/stat"] {
    std::string line;
    std::getline(std::ifstream{path}, line);
    return line.find(") Z ") == std::string::npos;
  };
  auto end = std::chrono::steady_clock::now() + patience;
  while (first_thread_lives() && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  REQUIRE_FALSE(first_thread_lives());
  look_until_state(headless.pid(), 'S');
  headless.stop();
  CHECK(look(headless.pid()).state == 'T');
}

TEST_CASE("run delays of all threads are counted, not only those of the first") {
  auto probe = look(::getpid());
  if (!probe.run_delay) {
    std::puts("SKIP: this kernel provides no scheduler statistics");
    return;
  }
  // Two threads on one processor wait for each other while the first thread sleeps.
  auto crowded = child{use_one_processor, [] {
                         auto first = std::thread{compute_forever};
                         auto second = std::thread{compute_forever};
                         first.join();
                         second.join();
                       }};
  auto before = look(crowded.pid());
  REQUIRE(before.run_delay);
  look_until(crowded.pid(), [&](const process_sample& x) { return x.run_delay >= *before.run_delay + 100ms; });
}

TEST_CASE("a process whose processor is used by others is judged starved") {
  auto rival = child{use_one_processor, compute_forever};
  auto starved = child{[] {
                         use_one_processor();
                         step_back();
                       },
                       compute_forever};
  if (::sched_getscheduler(starved.pid()) != SCHED_IDLE) {
    std::puts("SKIP: this kernel does not allow a process to lower its priority");
    return;
  }
  auto before = look(starved.pid());
  auto now = look_until(starved.pid(), [&](const process_sample& x) {
    return x.when >= before.when + 300ms && cause(before, x) == silence_cause::alive_but_starved;
  });
  MESSAGE("the process " << actors::judge_silence({before, now}, {}, 2s, 1500ms).reason);
  starved.stop();
  CHECK(cause(before, look(starved.pid())) == silence_cause::stopped);
}
