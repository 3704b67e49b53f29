#include <troupe/serialization/checkpoint.hpp>
#include <troupe/serialization/checkpoint_directory.hpp>

#include "scratch.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <csignal>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

constexpr auto old_step = step_id{10};
constexpr auto new_step = step_id{20};

/// Where syncs cost nothing: a killed process loses none of what the kernel has, so that the device plays no part.
fs::path fast_parent() {
  auto shared_memory = fs::path{"/dev/shm"};
  return ::access(shared_memory.c_str(), W_OK) == 0 ? shared_memory : fs::temp_directory_path();
}

enum class ending { killed, finished, failed, not_traceable };

expected<fs::path> save_step(const fs::path& directory, step_id step) {
  auto state = sample_state{{{"w", dtype::f32, {3001}}, {"b", dtype::u8, {5}}}, step.value};
  return save(directory, state, sample_manifest(step), 2);
}

/// In a child: saves the new step and removes the old one, under the eyes of its parent.
[[noreturn]] void save_and_retain(const fs::path& directory) {
  if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0)
    ::_exit(3);
  ::raise(SIGSTOP);
  auto good = save_step(directory, new_step) && apply_retention(directory, 1);
  ::_exit(good ? 0 : 1);
}

/// Runs `save_and_retain` and kills it at its system call number `calls`, before the kernel carries it out.
ending run_until(const fs::path& directory, int calls) {
  auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0)
    save_and_retain(directory);
  auto status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  if (WIFEXITED(status))
    return ending::not_traceable;
  // Stops come in pairs: before a call, and after it.
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

/// The step that is found after the crash. Whatever is there must be whole, and the rest must go.
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

TEST_CASE("a process killed at any of its system calls leaves a good checkpoint, and never goes back") {
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
      MESSAGE("skipped: no right to trace a child");
      return;
    }
    auto found = recover(scratch.path());
    CHECK(found >= newest);
    newest = std::max(newest, found);
    // What was interrupted can be done again.
    if (found == old_step)
      CHECK(save_step(scratch.path(), new_step));
  }
  CHECK(end == ending::finished);
  CHECK(newest == new_step);
  CHECK(calls > 20);
}
