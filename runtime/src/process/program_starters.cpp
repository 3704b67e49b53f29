#include "process/program_starters.hpp"

#include "process/signals_blocked.hpp"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <sys/stat.h>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

/// How long the destructor waits for threads that start a child.
constexpr auto end_window = std::chrono::seconds{10};

using disk_id = std::pair<std::uint32_t, std::uint32_t>;

/// The file system of an open file. Does not ask its disk, unlike fstat(2).
disk_id disk_of(int fd) {
  struct statx status {};
  if (::statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, 0, &status) != 0)
    return {};
  return {status.stx_dev_major, status.stx_dev_minor};
}

} // namespace

struct program_starters::shared_state {
  shared_state(child_launcher with, std::function<void()> tell)
      : launcher(std::move(with)), has_started(std::move(tell)) {}

  [[nodiscard]] expected<child> launch(const process_spec& spec) const {
    if (spec.argv.empty() || spec.program_fd < 0)
      return fail(errc::invalid_argument,
                  fmt::format("cannot start {}: pass an open program and its name as argv[0]", spec.program));
    auto oom_kills_before = counters.read();
    auto made = launcher.launch(spec);
    if (made)
      made->oom_kills_before = std::move(oom_kills_before);
    return made;
  }

  /// With the lock.
  void note(start_outcome outcome) {
    outcomes.push_back(std::move(outcome));
    has_started();
  }

  /// What the thread of a disk does. It lives as long as the starters: the kernel ends its children with it.
  void serve(disk_id disk) {
    auto lock = std::unique_lock{mutex};
    auto& waiting = requests[disk];
    for (;;) {
      changed.wait(lock, [&] { return stops || !waiting.empty(); });
      if (stops)
        break;
      auto next = std::move(waiting.front());
      waiting.pop_front();
      lock.unlock();
      auto made = launch(next.spec);
      lock.lock();
      if (!stops) {
        note({std::move(next), std::move(made)});
      } else if (made) {
        made->kill_group();
        lock.unlock();
        made->reap();
        lock.lock();
      }
    }
    --threads;
    changed.notify_all();
  }

  const child_launcher launcher;
  const oom_counters counters;
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void()> has_started;
  /// By the disks that have a thread.
  std::map<disk_id, std::deque<start_request>> requests;
  std::deque<start_outcome> outcomes;
  /// How many threads have not ended, and their handles.
  std::size_t threads = 0;
  std::vector<std::thread> handles;
  bool stops = false;
};

expected<program_starters> program_starters::make(std::function<void()> has_started) {
  TROUPE_TRY(auto launcher, child_launcher::make());
  return program_starters{std::make_shared<shared_state>(std::move(launcher), std::move(has_started))};
}

program_starters::~program_starters() {
  if (!state_)
    return;
  stop();
  auto lock = std::unique_lock{state_->mutex};
  const auto all_end = state_->changed.wait_for(lock, end_window, [this] { return state_->threads == 0; });
  auto threads = std::move(state_->handles);
  lock.unlock();
  for (auto& each : threads)
    all_end ? each.join() : each.detach();
}

void program_starters::start_soon(start_request request) {
  const auto disk = disk_of(request.spec.program_fd);
  auto lock = std::unique_lock{state_->mutex};
  if (state_->stops) {
    lock.unlock();
    return request.done(
        fail(errc::stopped, fmt::format("cannot start {}: its supervisor is being destroyed", request.spec.program)));
  }
  if (!state_->requests.contains(disk)) {
    const auto blocked = signals_blocked{};
    try {
      auto thread = std::thread{[state = state_, disk] { state->serve(disk); }};
      pthread_setname_np(thread.native_handle(), "starter");
      state_->handles.push_back(std::move(thread));
    } catch (const std::system_error& reason) {
      auto why = fmt::format("no thread to start {}: {}; raise the limit on threads (ulimit -u)", request.spec.program,
                             reason.what());
      return state_->note({std::move(request), fail(errc::io_error, std::move(why))});
    }
    ++state_->threads;
  }
  state_->requests[disk].push_back(std::move(request));
  state_->changed.notify_all();
}

std::optional<start_outcome> program_starters::take() {
  auto lock = std::lock_guard{state_->mutex};
  if (state_->outcomes.empty())
    return std::nullopt;
  auto result = std::move(state_->outcomes.front());
  state_->outcomes.pop_front();
  return result;
}

expected<child> program_starters::start(const process_spec& spec) const {
  return state_->launch(spec);
}

void program_starters::stop() {
  auto lock = std::lock_guard{state_->mutex};
  state_->stops = true;
  state_->changed.notify_all();
}

} // namespace troupe::runtime
