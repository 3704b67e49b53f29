#include "scratch_runs.hpp"

#include <log_pipe.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace troupe::testing;

namespace {

/// The most memory that a process has used, in MiB.
std::uint64_t peak_memory_of(pid_t pid) {
  auto in = std::ifstream{"/proc/" + std::to_string(pid) + "/status"};
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("VmHWM:"))
      return std::stoull(line.substr(6)) / 1024;
  return 0;
}

/// A pipe with a name.
class named_pipe {
 public:
  explicit named_pipe(std::string path) : path_(std::move(path)) { REQUIRE(::mkfifo(path_.c_str(), 0600) == 0); }
  ~named_pipe() {
    if (fd_ >= 0)
      ::close(fd_);
  }
  named_pipe(const named_pipe&) = delete;
  named_pipe& operator=(const named_pipe&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }

  /// From now on writers can open it.
  void open() { REQUIRE((fd_ = ::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)) >= 0); }

  /// Reads what is there.
  std::string read() const {
    std::string result;
    std::array<char, 65536> buffer;
    for (ssize_t n = 0; (n = ::read(fd_, buffer.data(), buffer.size())) > 0;)
      result.append(buffer.data(), static_cast<std::size_t>(n));
    return result;
  }

 private:
  std::string path_;
  int fd_ = -1;
};

} // namespace

TEST_CASE("a worker that prints 100 MB delays no heartbeat, and costs its node and driver little memory") {
  scratch_runs here;
  auto node = here.start_node();
  auto driver = here.start({misbehaving_program(), "flood", "2", here.path("runs").string(), "flood", node.address});
  // Without allowed failures: a heartbeat that comes late would end the run.
  auto peak = std::uint64_t{0};
  here.await(driver, [&] {
    peak = std::max(peak, peak_memory_of(driver.pid()));
    return std::filesystem::exists(here.run_directory("flood") / "result.json");
  });
  const auto status = driver.wait();
  CHECK(status == exit_status{0, {}});
  const auto result = here.result("flood");
  INFO(result.dump(2));
  CHECK(result["status"] == "completed");
  CHECK(peak < 200);
  CHECK(peak_memory_of(node.process.pid()) < 200);
  // Each line is there, or a line says how many are not.
  const auto path = here.run_directory("flood") / "logs" / "worker-1.log";
  const auto log = read_file(path.string() + ".1") + read_file(path);
  auto lines = std::size_t{0};
  auto dropped = std::size_t{0};
  auto in = std::istringstream{log};
  for (std::string line; std::getline(in, line);) {
    if (line == std::string(99, '.'))
      ++lines;
    else if (line.starts_with("(") && contains(line, "lines are dropped here"))
      dropped += std::stoull(line.substr(1));
  }
  CHECK(lines + dropped == 1'000'000);
  CHECK(lines > 1000);
}

TEST_CASE("a driver whose standard error nobody reads trains to the end, and shows the rest when somebody does") {
  scratch_runs here;
  auto terminal = named_pipe{here.path("terminal").string()};
  terminal.open();
  auto driver =
      here.start({"/bin/sh", "-c",
                  misbehaving_program() + " flood 2 " + here.path("runs").string() + " unread 2> " + terminal.path()});
  // The pipe is full after 64 KiB of 100 MB.
  here.await(driver, [&] { return std::filesystem::exists(here.run_directory("unread") / "result.json"); });
  CHECK(here.result("unread")["status"] == "completed");
  auto shown = std::string{};
  CHECK(becomes_true([&] {
    shown += terminal.read();
    return !driver.running();
  }));
  CHECK(driver.wait() == exit_status{0, {}});
  CHECK(contains(shown, "says hello"));
  CHECK(shown.size() > 65'536);
  CHECK(shown.size() < 10'000'000);
}

TEST_CASE("a caf-node whose log nobody reads starts workers and stays in touch with its driver") {
  scratch_runs here;
  const auto text = here.path("log").string();
  auto log = troupe::chaos::log_pipe{here.path("log-pipe"), text};
  auto node =
      child_process{{{caf_node_program()}, {{"TROUPE_KEYS", here.keys()}}, "/dev/null", log.path()}, here.path("node")};
  REQUIRE(becomes_true([&] { return node.out().ends_with("\n") || !node.running(); }));
  const auto address = node.out().substr(node.out().rfind(' ') + 1);
  log.hold();
  auto driver = here.start(here.charlm(
      "unread", {"--workers", "2", "--nodes", address.substr(0, address.size() - 1), "--steps", "100000000"}));
  here.await_step(driver, "unread");
  // Each end and each start of a worker is a line of the log.
  for (int round = 0; round < 3; ++round) {
    const auto before = here.workers();
    REQUIRE(before.size() == 2);
    send_signal(before.back(), SIGKILL);
    here.await(driver, [&] {
      const auto now = here.workers();
      return now.size() == 2 && now != before && std::ranges::find(now, before.back()) == now.end();
    });
    here.await_step(driver, "unread", here.last_step("unread"));
  }
  driver.signal(SIGTERM);
  CHECK(driver.wait() == exit_status{143, {}});
  const auto result = here.result("unread");
  INFO(result.dump(2));
  CHECK(result["restarts"] == 0);
  CHECK(result["failures"].size() == 3);
  for (const auto& failure : result["failures"])
    CHECK(contains(failure["message"], "SIGKILL"));
  log.release();
  CHECK(becomes_true([&] { return contains(read_file(text), "ended: killed by signal 9 (SIGKILL)"); }));
}
