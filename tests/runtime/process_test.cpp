#include <troupe/runtime/process.hpp>

#include <troupe/runtime/program.hpp>

#include <built.hpp>
#include <doctest/doctest.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <map>
#include <mutex>
#include <poll.h>
#include <set>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>
#include <unistd.h>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;

/// How long the tests wait for expected events before they fail.
constexpr auto patience = std::chrono::seconds{60};

/// A child's output and how it ended.
struct record {
  std::vector<std::string> out;
  std::vector<std::string> err;
  std::vector<exit_report> reports;
  /// How much of `out` had come whenever it was idle.
  std::vector<std::size_t> lines_when_idle;
};

/// Collects what the supervisor reports, and lets tests wait for it.
class journal {
 public:
  [[nodiscard]] process_callbacks callbacks() {
    return {.on_output =
                [this](pid_t pid, output_stream stream, std::string_view line) {
                  std::lock_guard guard{mutex_};
                  auto& x = records_[pid];
                  (stream == output_stream::out ? x.out : x.err).emplace_back(line);
                  changed_.notify_all();
                },
            .on_exit =
                [this](const exit_report& report) {
                  std::lock_guard guard{mutex_};
                  records_[report.pid].reports.push_back(report);
                  changed_.notify_all();
                },
            .on_idle =
                [this](pid_t pid) {
                  std::lock_guard guard{mutex_};
                  auto& x = records_[pid];
                  x.lines_when_idle.push_back(x.out.size());
                  changed_.notify_all();
                }};
  }

  record wait_for_end(pid_t pid) {
    return wait_until(pid, [](const record& x) { return !x.reports.empty(); });
  }

  record wait_for_line(pid_t pid) {
    return wait_until(pid, [](const record& x) { return !x.out.empty(); });
  }

  record wait_until_idle(pid_t pid, std::size_t times) {
    return wait_until(pid, [&](const record& x) { return x.lines_when_idle.size() >= times; });
  }

  std::size_t records() {
    std::lock_guard guard{mutex_};
    return records_.size();
  }

 private:
  template <class Predicate>
  record wait_until(pid_t pid, Predicate holds) {
    std::unique_lock lock{mutex_};
    REQUIRE(changed_.wait_for(lock, patience, [&] { return holds(records_[pid]); }));
    return records_[pid];
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<pid_t, record> records_;
};

/// A supervisor whose children all run the helper program.
struct fixture {
  journal events;
  program_file program = std::move(program_file::open(testing::built("tests/bin/runtime_process_child"))).value();
  process_supervisor supervisor = std::move(process_supervisor::make(events.callbacks())).value();

  [[nodiscard]] process_spec spec(std::vector<std::string> arguments) const {
    process_spec result;
    result.program_fd = program.fd();
    result.program = program.identity().path;
    result.argv = std::move(arguments);
    result.argv.insert(result.argv.begin(), "child");
    return result;
  }

  [[nodiscard]] pid_t start(std::vector<std::string> arguments) {
    auto pid = supervisor.start(spec(std::move(arguments)));
    REQUIRE_MESSAGE(pid.has_value(), pid.error().message);
    return *pid;
  }

  record run(std::vector<std::string> arguments) { return events.wait_for_end(start(std::move(arguments))); }
};

unique_fd open_pid(pid_t pid) {
  return unique_fd{static_cast<int>(syscall(SYS_pidfd_open, pid, 0))};
}

/// Waits for the end of a process, which need not be our child.
bool ends(const unique_fd& pidfd) {
  pollfd wanted{pidfd.get(), POLLIN, 0};
  return poll(&wanted, 1, static_cast<int>(std::chrono::milliseconds{patience}.count())) == 1;
}

pid_t announced_pid(const record& x) {
  REQUIRE(x.out.front().starts_with("ready "));
  return static_cast<pid_t>(std::stol(x.out.front().substr(6)));
}

std::size_t open_descriptors() {
  auto entries = fs::directory_iterator{"/proc/self/fd"};
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

using lines = std::vector<std::string>;

} // namespace

TEST_CASE("a child's output arrives line by line and its exit code after it") {
  fixture f;
  auto seen = f.run({"exit", "3"});
  CHECK(seen.out == lines{"to output"});
  CHECK(seen.err == lines{"to error"});
  const auto& report = seen.reports.front();
  CHECK(report.exit_code == 3);
  CHECK_FALSE(report.signal);
  CHECK(report.describe() == "exit code 3");
  CHECK(std::set<std::string>(report.last_lines.begin(), report.last_lines.end()) ==
        std::set<std::string>{"to output", "to error"});
}

TEST_CASE("a killed child is reported with its signal") {
  fixture f;
  auto pid = f.start({"wait"});
  f.events.wait_for_line(pid);
  CHECK(f.supervisor.kill(pid, SIGKILL));
  auto report = f.events.wait_for_end(pid).reports.front();
  CHECK(report.signal == SIGKILL);
  CHECK_FALSE(report.exit_code);
  CHECK(report.describe() == "killed by signal 9 (SIGKILL)");
  CHECK_FALSE(f.supervisor.kill(pid, SIGKILL));
}

TEST_CASE("a child's default action for SIGTERM ends it") {
  fixture f;
  auto pid = f.start({"wait"});
  f.events.wait_for_line(pid);
  CHECK(f.supervisor.kill(pid, SIGTERM));
  CHECK(f.events.wait_for_end(pid).reports.front().describe() == "killed by signal 15 (SIGTERM)");
}

TEST_CASE("the destructor ends and reaps every child and calls no callback") {
  journal events;
  std::vector<unique_fd> children;
  {
    fixture f;
    auto supervisor = process_supervisor::make(events.callbacks());
    REQUIRE(supervisor);
    for (int i = 0; i < 3; ++i)
      children.push_back(open_pid(supervisor->start(f.spec({"wait"})).value()));
  }
  for (const auto& x : children) {
    CHECK(ends(x));
    // Reaped, not only dead: the pid does not exist any more.
    CHECK(syscall(SYS_pidfd_send_signal, x.get(), 0, nullptr, 0) == -1);
  }
}

TEST_CASE("the kernel kills a child when its supervisor is killed") {
  fixture f;
  auto middle = f.start({"supervise", "wait"});
  auto grandchild = open_pid(announced_pid(f.events.wait_for_line(middle)));
  REQUIRE(grandchild);
  CHECK(f.supervisor.kill(middle, SIGKILL));
  CHECK(ends(grandchild));
}

TEST_CASE("the lifeline ends a child when its supervisor is killed and the kernel does not help") {
  fixture f;
  auto middle = f.start({"supervise", "lifeline"});
  auto grandchild = open_pid(announced_pid(f.events.wait_for_line(middle)));
  REQUIRE(grandchild);
  CHECK(f.supervisor.kill(middle, SIGKILL));
  CHECK(ends(grandchild));
}

TEST_CASE("a child gets its own session, no input and default signals") {
  auto before = std::signal(SIGPIPE, SIG_IGN);
  fixture f;
  auto seen = f.run({"session"});
  std::signal(SIGPIPE, before);
  CHECK(seen.out == lines{"session own, group own, SIGTERM open, SIGPIPE default, input 0"});
}

TEST_CASE("a child gets its standard streams, its bootstrap, its lifeline and no other descriptor") {
  fixture f;
  // A descriptor that is not closed on exec, as some libraries open them.
  unique_fd careless{dup(f.program.fd())};
  CHECK(f.run({"descriptors"}).out == lines{"0 1 2 3 4 "});
}

TEST_CASE("a child gets the socket of its specification, whatever its number here, and ours stays open") {
  // The lowest free numbers, which mean other descriptors in the child.
  std::array<int, 2> ends{-1, -1};
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) == 0);
  unique_fd ours{ends[0]};
  unique_fd low{ends[1]};
  unique_fd gap{dup(low.get())};
  fixture f;
  unique_fd high{fcntl(low.get(), F_DUPFD_CLOEXEC, 100)};
  unique_fd careless{dup(low.get())};
  gap.reset();
  for (auto number : {low.get(), high.get()}) {
    auto spec = f.spec({"greet"});
    spec.descriptor_socket = number;
    auto pid = f.supervisor.start(spec);
    REQUIRE(pid);
    CHECK(f.events.wait_for_end(*pid).out == lines{"0 1 2 3 4 5 "});
    std::array<char, 16> buffer;
    CHECK(recv(ours.get(), buffer.data(), buffer.size(), MSG_DONTWAIT) == 5);
    CHECK(fcntl(number, F_GETFD) >= 0);
  }
}

TEST_CASE("a specification with a closed socket is rejected") {
  fixture f;
  auto spec = f.spec({"exit", "0"});
  spec.descriptor_socket = 1'000'000;
  CHECK_FALSE(f.supervisor.start(spec).has_value());
}

TEST_CASE("a child gets the environment and the directory of its specification and nothing else") {
  fixture f;
  auto spec = f.spec({"surroundings"});
  spec.env = {"FIRST=1", "SECOND=two words"};
  spec.directory = "/proc";
  auto pid = f.supervisor.start(spec);
  REQUIRE(pid);
  auto seen = f.events.wait_for_end(*pid).out;
  std::erase_if(seen, [](const std::string& x) { return x.starts_with("ASAN_") || x.starts_with("UBSAN_"); });
  CHECK(seen == lines{"/proc", "FIRST=1", "SECOND=two words"});
}

TEST_CASE("the bootstrap arrives complete") {
  fixture f;
  for (std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{1} << 20}) {
    auto spec = f.spec({"bootstrap"});
    spec.bootstrap = std::string{"hello"}.substr(0, size);
    spec.bootstrap.resize(size, '.');
    auto pid = f.supervisor.start(spec);
    REQUIRE(pid);
    CHECK(f.events.wait_for_end(*pid).out == lines{std::to_string(size) + " bytes, " + (size == 0 ? "" : "hello")});
  }
}

TEST_CASE("an unterminated last line is reported") {
  fixture f;
  CHECK(f.run({"partial"}).out == lines{"whole", "partial"});
}

TEST_CASE("a long line is reported in pieces, and the next one starts anew") {
  fixture f;
  auto full = std::string(max_line_bytes, 'x');
  CHECK(f.run({"long", std::to_string(max_line_bytes)}).out == lines{full, "next"});
  CHECK(f.run({"long", std::to_string(max_line_bytes + 1)}).out == lines{full, "x", "next"});
  auto many = f.run({"long", "1000000"}).out;
  CHECK(many.size() == 1000000 / max_line_bytes + 2);
  CHECK(many.back() == "next");
}

TEST_CASE("the exit report contains the last lines") {
  fixture f;
  auto seen = f.run({"lines", "1000"});
  CHECK(seen.out.size() == 1000);
  const auto& last = seen.reports.front().last_lines;
  CHECK(last.size() == max_last_lines);
  CHECK(last.front() == "line 980");
  CHECK(last.back() == "line 999");
}

TEST_CASE("fifty concurrent children are distinguished") {
  fixture f;
  std::vector<pid_t> children;
  std::mutex mutex;
  std::vector<std::thread> starters;
  for (int t = 0; t < 5; ++t)
    starters.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        auto pid = f.supervisor.start(f.spec({"exit", std::to_string(t * 10 + i)}));
        std::lock_guard guard{mutex};
        children.push_back(pid.value());
      }
    });
  for (auto& x : starters)
    x.join();
  std::set<int> codes;
  for (auto pid : children) {
    auto seen = f.events.wait_for_end(pid);
    // A pid may be reused once its first owner is reaped.
    for (const auto& report : seen.reports)
      codes.insert(report.exit_code.value_or(-1));
    CHECK(seen.out.size() == seen.reports.size());
  }
  CHECK(codes.size() == 50);
}

TEST_CASE("a process that a child leaves in its group ends with the child") {
  fixture f;
  auto seen = f.run({"leave", "ours"});
  CHECK(seen.reports.front().exit_code == 0);
  auto left = open_pid(announced_pid(seen));
  CHECK((!left || ends(left)));
}

TEST_CASE("a process in its own session that keeps the pipes open does not delay the report") {
  fixture f;
  auto seen = f.run({"leave", "own"});
  CHECK(seen.reports.front().exit_code == 0);
  auto left = open_pid(announced_pid(seen));
  REQUIRE(left);
  CHECK(syscall(SYS_pidfd_send_signal, left.get(), SIGKILL, nullptr, 0) == 0);
  CHECK(ends(left));
}

TEST_CASE("children may be started from a callback") {
  journal events;
  fixture f;
  process_supervisor* supervisor = nullptr;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> codes;
  auto on_exit = [&](const exit_report& report) {
    std::lock_guard guard{mutex};
    codes.push_back(report.exit_code.value_or(-1));
    if (codes.size() < 3)
      CHECK(supervisor->start(f.spec({"exit", std::to_string(codes.size())})));
    changed.notify_all();
  };
  auto made = process_supervisor::make({.on_output = {}, .on_exit = on_exit});
  supervisor = &*made;
  std::unique_lock lock{mutex};
  REQUIRE(supervisor->start(f.spec({"exit", "0"})));
  CHECK(changed.wait_for(lock, patience, [&] { return codes.size() == 3; }));
  CHECK(codes == std::vector{0, 1, 2});
}

TEST_CASE("no descriptor is left open after many children") {
  fixture f;
  f.run({"exit", "0"});
  auto before = open_descriptors();
  for (int i = 0; i < 20; ++i)
    f.run({"exit", "0"});
  auto spec = f.spec({"exit", "0"});
  spec.directory = "/nowhere/at/all";
  CHECK_FALSE(f.supervisor.start(spec));
  CHECK(open_descriptors() == before);
}

TEST_CASE("a failed start reports the reason") {
  fixture f;
  SUBCASE("the directory is missing") {
    auto spec = f.spec({"exit", "0"});
    spec.directory = "/nowhere/at/all";
    auto pid = f.supervisor.start(spec);
    REQUIRE_FALSE(pid);
    CHECK(pid.error().code == errc::not_found);
    CHECK(pid.error().message.find("/nowhere/at/all") != std::string::npos);
    CHECK(pid.error().message.find(f.program.identity().path) != std::string::npos);
  }
  SUBCASE("the program is closed") {
    auto spec = f.spec({"exit", "0"});
    spec.program_fd = -1;
    auto pid = f.supervisor.start(spec);
    REQUIRE_FALSE(pid);
    CHECK(pid.error().code == errc::invalid_argument);
  }
  SUBCASE("the program is a script") {
    auto path = fs::temp_directory_path() / ("troupe_process_test_" + std::to_string(getpid()));
    std::ofstream{path} << "#!/bin/sh\nexit 0\n";
    fs::permissions(path, fs::perms::owner_all);
    auto script = program_file::open(path);
    fs::remove(path);
    REQUIRE(script);
    auto spec = f.spec({});
    spec.program_fd = script->fd();
    auto pid = f.supervisor.start(spec);
    REQUIRE_FALSE(pid);
    CHECK(pid.error().message.find("scripts cannot be started") != std::string::npos);
  }
}

TEST_CASE("a program that is replaced after it was opened still runs in its old version") {
  auto path = fs::temp_directory_path() / ("troupe_process_test_" + std::to_string(getpid()));
  fs::copy_file(testing::built("tests/bin/runtime_process_child"), path);
  auto program = program_file::open(path);
  fs::remove(path);
  REQUIRE(program);
  fixture f;
  auto spec = f.spec({"exit", "7"});
  spec.program_fd = program->fd();
  auto pid = f.supervisor.start(spec);
  REQUIRE(pid);
  CHECK(f.events.wait_for_end(*pid).reports.front().exit_code == 7);
}

TEST_CASE_FIXTURE(fixture,
                  "a reusable child gets one bootstrap after the other, and what it wrote comes before it is idle") {
  std::array<int, 2> sockets{};
  REQUIRE(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()) == 0);
  const unique_fd ours{sockets[0]};
  const unique_fd theirs{sockets[1]};
  auto how = spec({"bootstraps"});
  how.bootstrap = "first";
  how.descriptor_socket = theirs.get();
  how.is_reusable = true;
  const auto started = supervisor.start(how);
  REQUIRE(started);
  const auto pid = *started;
  events.wait_until_idle(pid, 1);
  REQUIRE(supervisor.reuse(pid, "second", theirs.get()));
  const auto second = events.wait_until_idle(pid, 2);
  CHECK(second.out == std::vector<std::string>{"first", "second"});
  CHECK(second.lines_when_idle == std::vector<std::size_t>{1, 2});
  REQUIRE(supervisor.reuse(pid, "end", theirs.get()));
  const auto ended = events.wait_for_end(pid);
  CHECK(ended.reports.front().exit_code == 0);
  CHECK(supervisor.reuse(pid, "third", theirs.get()).error().code == errc::worker_lost);
}

TEST_CASE_FIXTURE(fixture, "a child that is not reusable takes no other bootstrap") {
  const auto pid = start({"wait"});
  CHECK(supervisor.reuse(pid, "second", 0).error().code == errc::worker_lost);
}

} // namespace troupe::runtime
