#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include "scratch.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

constexpr auto old_step = step_id{10};
constexpr auto new_step = step_id{20};

/// A directory where syncs are cheap: a killed process loses nothing that the kernel has, so the device does not
/// matter.
fs::path fast_parent() {
  auto shared_memory = fs::path{"/dev/shm"};
  return ::access(shared_memory.c_str(), W_OK) == 0 ? shared_memory : fs::temp_directory_path();
}

enum class ending { killed, finished, failed, not_traceable };

expected<fs::path> save_step(const fs::path& directory, step_id step) {
  auto state = sample_state{{{"w", dtype::f32, {3001}}, {"b", dtype::u8, {5}}}, step.value};
  return save(directory, state, sample_manifest(step), 2);
}

/// In a child: saves the new step and removes the old one, traced by its parent.
[[noreturn]] void save_and_retain(const fs::path& directory) {
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0)
    ::_exit(3);
  ::raise(SIGSTOP);
  auto good = save_step(directory, new_step) && apply_retention(directory, 1);
  ::_exit(good ? 0 : 1);
}

/// Runs `save_and_retain` and kills it at its system call number `calls`, before the kernel executes it.
ending run_until(const fs::path& directory, int calls) {
  auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0)
    save_and_retain(directory);
  auto status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status))
    return ending::not_traceable;
  // There are two stops per system call: before and after it.
  for (int stop = 0; stop <= 2 * calls; ++stop) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    REQUIRE(::waitpid(child, &status, 0) == child);
    if (WIFEXITED(status))
      return WEXITSTATUS(status) == 0 ? ending::finished : ending::failed;
  }
  ::kill(child, SIGKILL);
  REQUIRE(::waitpid(child, &status, 0) == child);
  return ending::killed;
}

/// The step found after the crash. Existing checkpoints must be complete, and the rest must be removable.
step_id recover(const fs::path& directory) {
  auto latest = open_latest(directory);
  REQUIRE(latest);
  CHECK(latest->passed_over.empty());
  REQUIRE(remove_abandoned(directory));
  for (const auto& entry : fs::directory_iterator{directory})
    CHECK(parse_checkpoint_name(entry.path().filename().string()));
  auto entries = list_checkpoints(directory);
  REQUIRE(entries);
  for (const auto& entry : *entries)
    CHECK(checkpoint::open(entry.path)->verify());
  return latest->found.content().step;
}

} // namespace

TEST_CASE("a process killed at any of its system calls leaves a valid checkpoint, and progress is never lost") {
  auto newest = old_step;
  auto end = ending::killed;
  auto calls = 0;
  for (; end == ending::killed; ++calls) {
    CAPTURE(calls);
    REQUIRE(calls < 10'000);
    auto scratch = scratch_directory{fast_parent()};
    REQUIRE(save_step(scratch.path(), old_step));
    end = run_until(scratch.path(), calls);
    if (end == ending::not_traceable) {
      std::puts("SKIP: no right to trace a child");
      return;
    }
    auto found = recover(scratch.path());
    CHECK(found >= newest);
    newest = std::max(newest, found);
    // The interrupted operation can be repeated.
    if (found == old_step)
      CHECK(save_step(scratch.path(), new_step));
  }
  CHECK(end == ending::finished);
  CHECK(newest == new_step);
  CHECK(calls > 20);
}

// -- any instant ----------------------------------------------------------------------------------------------------

namespace {

/// In a child: takes checkpoints in a loop, removes old ones, and reports each acknowledged one.
[[noreturn]] void save_for_ever(const fs::path& directory, step_id first, int told) {
  for (auto step = first;; ++step.value) {
    if (!save_step(directory, step) || !apply_retention(directory, 1 + step.value % 3))
      ::_exit(1);
    if (::write(told, &step.value, sizeof(step.value)) != sizeof(step.value))
      ::_exit(2);
  }
}

/// The last reported step; 0 for none.
step_id last_told(int descriptor) {
  auto result = step_id{};
  for (auto step = std::uint64_t{0}; ::read(descriptor, &step, sizeof(step)) == sizeof(step);)
    result.value = step;
  return result;
}

/// Lets a child save for `time` and kills it. Returns the last step it reported.
step_id kill_after(std::chrono::microseconds time, const fs::path& directory, step_id first) {
  auto ends = std::array<int, 2>{};
  REQUIRE(::pipe(ends.data()) == 0);
  auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0)
    save_for_ever(directory, first, ends[1]);
  ::close(ends[1]);
  std::this_thread::sleep_for(time); // the instant is what is tested, nothing waits for it
  ::kill(child, SIGKILL);
  auto status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  auto result = last_told(ends[0]);
  ::close(ends[0]);
  return result;
}

} // namespace

// TROUPE_LONG_TESTS=1 kills two thousand times.
TEST_CASE("a process killed at any instant, repeatedly, loses no checkpoint that it has reported") {
  auto scratch = scratch_directory{fast_parent()};
  auto random = std::mt19937_64{20};
  auto newest = step_id{};
  auto checkpoints = 0;
  for (int round = 0; round < (std::getenv("TROUPE_LONG_TESTS") != nullptr ? 2'000 : 60); ++round) {
    CAPTURE(round);
    auto time = std::chrono::microseconds{random() % 12'000};
    auto told = kill_after(time, scratch.path(), {newest.value + 1});
    checkpoints += told.value != 0;
    newest = std::max(newest, told);
    if (newest.value == 0) {
      // Killed before the first checkpoint; its remains must still be removable.
      REQUIRE(remove_abandoned(scratch.path()));
      if (auto latest = open_latest(scratch.path()))
        newest = latest->found.content().step;
      continue;
    }
    auto found = recover(scratch.path());
    CHECK(found >= newest);
    newest = found;
  }
  CHECK(checkpoints > 10);
}
