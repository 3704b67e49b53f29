#include "scratch_runs.hpp"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <doctest/doctest.h>
#include <filesystem>
#include <small_disk.hpp>
#include <sstream>
#include <stalling_disk.hpp>
#include <string>
#include <sys/stat.h>
#include <system_error>
#include <vector>

// Nothing that waits for a disk or a child runs where heartbeats pass: what stalls beside a training run costs it
// neither a worker nor a bit.

using namespace troupe::testing;
namespace fs = std::filesystem;

namespace {

/// Runs on nodes, beside which something stalls.
class stalls {
 public:
  scratch_runs here;

  /// A node for several runs, which starts charlm and what else is put into `here.programs()`.
  [[nodiscard]] running_node start_node() { return here.start_node({"--cpus", "8", "--program-dir", here.programs()}); }

  [[nodiscard]] std::vector<std::string> charlm(const std::string& name, const std::string& nodes) const {
    return here.charlm(name, {"--steps", "1000000", "--workers", "2", "--nodes", nodes, "--placement", "spread"});
  }

  [[nodiscard]] child_process train(const std::string& name, const std::string& nodes) {
    auto driver = here.start(charlm(name, nodes));
    here.await_step(driver, name);
    return driver;
  }

  /// Another program than charlm for nodes, by its name.
  [[nodiscard]] fs::path other_program() const {
    fs::create_directory(here.path("drivers"));
    const auto result = here.path("drivers") / "other";
    fs::copy_file(charlm_program(), result, fs::copy_options::skip_existing);
    return result;
  }
  /// What nodes start for it.
  [[nodiscard]] fs::path other_on_nodes() const { return fs::path{here.programs()} / "other"; }

  [[nodiscard]] std::vector<std::string> other(const std::string& name, const std::string& nodes) const {
    auto result = charlm(name, nodes);
    result[0] = other_program().string();
    return result;
  }

  [[nodiscard]] pid_t worker_of(const std::string& program) const {
    for (const auto pid : here.workers())
      if (fs::path{read_file("/proc/" + std::to_string(pid) + "/cmdline").c_str()}.filename() == program)
        return pid;
    return 0;
  }

  outcome troupe(const std::string& command, const running_node& node) {
    return here.run({troupe_program(), command, "--nodes", node.address, node.address});
  }

  void check_state(const running_node& node, const std::string& wanted) {
    const auto ran = here.run({troupe_program(), "nodes", "--json", "--nodes", node.address});
    INFO(ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    CHECK(nlohmann::json::parse(ran.out).at(0)["state"] == wanted);
  }

  /// The node answers, and gives its workers away.
  void check_commands(const running_node& node) {
    check_state(node, "available");
    CHECK(here.run({troupe_program(), "drain", "--wait", "--nodes", node.address, node.address}).status ==
          exit_status{0, {}});
    check_state(node, "drained");
    CHECK(troupe("resume", node).status == exit_status{0, {}});
    check_state(node, "available");
  }

  /// A run has the bits of an undisturbed one.
  void check_bits(const nlohmann::json& result) { CHECK(result["state_sha256"] == here.state_after(result["steps"])); }

  /// No worker was lost, and no step.
  void check_undisturbed(const nlohmann::json& result) {
    INFO(result.dump(2));
    CHECK(result["failures"].empty());
    for (const auto& each : result["generations"])
      CHECK(each["steps_redone"] == 0);
    check_bits(result);
  }
};

/// The processor time that a process has taken, in the kernel's ticks.
std::uint64_t ticks_of(pid_t pid) {
  const auto text = read_file("/proc/" + std::to_string(pid) + "/stat");
  auto in = std::istringstream{text.substr(std::min(text.size(), text.rfind(')')))};
  std::string field;
  // From the name, the second field, to that before the user's time, the fourteenth.
  for (auto i = 2; i <= 13; ++i)
    in >> field;
  std::uint64_t user = 0;
  in >> user;
  return user;
}

/// The dynamic linker waits for its writer, while it looks for the libraries of a program.
class hanging_library {
 public:
  hanging_library() {
    if (::mkdtemp(directory_.data()) != nullptr)
      ::mkfifo(path().c_str(), 0600);
  }
  hanging_library(const hanging_library&) = delete;
  hanging_library& operator=(const hanging_library&) = delete;
  ~hanging_library() {
    auto ignored = std::error_code{};
    fs::remove_all(directory_, ignored);
  }

  /// Makes `program`, which needs it, of charlm's code. False if none of charlm's libraries has so long a name.
  [[nodiscard]] bool write_user(const fs::path& program) const {
    auto code = read_file(charlm_program());
    const auto place = code.find(std::string{'\0'} + "libstdc++.so.6" + '\0');
    if (place == std::string::npos)
      return false;
    code.replace(place + 1, path().size(), path());
    write_file(program, code);
    fs::permissions(program, fs::perms::owner_all);
    return true;
  }

 private:
  /// As long as that library's name.
  [[nodiscard]] std::string path() const { return directory_ + "/l"; }

  std::string directory_ = "/tmp/tXXXXXX";
};

} // namespace

TEST_CASE_FIXTURE(stalls,
                  "a dynamic linker that hangs ends the run whose program it looks into, and costs no other anything") {
  const auto library = hanging_library{};
  if (!library.write_user(other_on_nodes())) {
    std::puts("SKIP: charlm does not need libstdc++.so.6");
    return;
  }
  const auto node = start_node();
  const auto second = start_node();
  auto driver = train("run", node.address + "," + second.address);
  auto hanging = here.start(other("hanging", node.address));
  const auto hangs = [&] {
    const auto all = here.processes();
    return std::ranges::any_of(all, [](pid_t pid) { return environment_of(pid).contains("LD_TRACE_LOADED_OBJECTS"); });
  };
  here.await(hanging, hangs);
  const auto step = here.last_step("run");
  check_commands(node);
  CHECK(hanging.wait() == exit_status{1, {}});
  INFO(hanging.err());
  CHECK(contains(hanging.err(), "has not read and checked " + other_program().string()));
  const auto next = here.run(here.charlm("next", {"--nodes", node.address}));
  INFO(next.err);
  CHECK(next.status == exit_status{0, {}});
  CHECK(becomes_true([&] { return !hangs(); }));
  here.await_step(driver, "run", step + 100);
  check_undisturbed(here.stop(driver, "run"));
}

TEST_CASE_FIXTURE(stalls, "a disk that stalls while a node looks into a program on it costs other runs nothing") {
  auto disk = stalling_disk{here.path("disk"), other_program()};
  if (!disk.mounted()) {
    std::puts("SKIP: no right to mount a disk, or no FUSE");
    return;
  }
  fs::create_symlink(disk.file(), other_on_nodes());
  const auto node = start_node();
  const auto second = start_node();
  auto driver = train("run", node.address + "," + second.address);
  disk.stall();
  auto stalled = here.start(other("stalled", node.address));
  here.await(stalled, [&] { return disk.waiting() > 0; });
  const auto step = here.last_step("run");
  check_commands(node);
  CHECK(stalled.wait() == exit_status{1, {}});
  INFO(stalled.err());
  CHECK(contains(stalled.err(), "does its disk answer?"));
  const auto next = here.run(here.charlm("next", {"--nodes", node.address}));
  INFO(next.err);
  CHECK(next.status == exit_status{0, {}});
  here.await_step(driver, "run", step + 100);
  CHECK(disk.waiting() > 0);
  disk.go_on();
  // Until the node's look has ended, it does not begin another.
  auto again = other("again", node.address);
  again.insert(again.end(), {"--time-limit", "1s"});
  CHECK(becomes_true([&] { return here.run(again).status == exit_status{75, {}}; }));
  check_undisturbed(here.stop(driver, "run"));
}

TEST_CASE_FIXTURE(stalls, "a disk that stalls while a node starts a program of it costs other runs nothing") {
  auto disk = stalling_disk{here.path("disk"), other_program()};
  if (!disk.mounted()) {
    std::puts("SKIP: no right to mount a disk, or no FUSE");
    return;
  }
  fs::create_symlink(disk.file(), other_on_nodes());
  const auto node = start_node();
  auto driver = train("run", node.address);
  auto stalled = here.start(other("stalled", node.address));
  here.await_step(stalled, "stalled");
  disk.stall();
  send_signal(worker_of("other"), SIGKILL);
  here.await(stalled, [&] { return disk.waiting() > 0; });
  // Nothing else that the node starts, or sees end, waits.
  check_state(node, "available");
  const auto next = here.run(here.charlm("next", {"--nodes", node.address}));
  INFO(next.err);
  CHECK(next.status == exit_status{0, {}});
  send_signal(worker_of("charlm"), SIGKILL);
  here.await_failures(driver, "run", 1);
  here.await_group(driver, "run", 2, 1);
  CHECK(disk.waiting() > 0);
  disk.go_on();
  here.await_group(stalled, "stalled", 2, 1);
  for (auto* const each : {&driver, &stalled}) {
    const auto result = here.stop(*each, each == &driver ? "run" : "stalled");
    INFO(result.dump(2));
    CHECK(result["failures"].size() == 1);
    check_bits(result);
  }
}

TEST_CASE_FIXTURE(stalls, "a run whose directory is on a disk that stalls trains on") {
  fs::create_directories(here.path("runs"));
  auto reason = std::string{};
  const auto disk = troupe::chaos::small_disk::on_loop_device(here.path("image"), here.path("runs"), reason);
  if (!disk) {
    std::puts(("SKIP: no disk that can be frozen: " + reason).c_str());
    return;
  }
  const auto node = start_node();
  const auto second = start_node();
  auto words = charlm("run", node.address + "," + second.address);
  words.insert(words.end(), {"--checkpoint-every", "100"});
  auto driver = here.start(words);
  here.await_step(driver, "run");
  const auto worker = worker_of("charlm");
  if (!disk->freeze()) {
    std::puts("SKIP: the disk cannot be frozen");
    return;
  }
  check_state(node, "available");
  CHECK(troupe("drain", node).status == exit_status{0, {}});
  CHECK(troupe("resume", node).status == exit_status{0, {}});
  check_state(node, "available");
  // What says how far the run is comes after its files; but a worker that computes makes steps.
  const auto before = ticks_of(worker);
  here.await(driver, [&] { return ticks_of(worker) > before + 100; });
  disk->thaw();
  const auto result = here.stop(driver, "run");
  check_undisturbed(result);
  CHECK(result["due_checkpoints"]["skipped"] > 0);
  CHECK(result["due_checkpoints"]["failed"] == 0);
}
