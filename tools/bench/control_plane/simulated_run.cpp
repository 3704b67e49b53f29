#include "simulated_run.hpp"

#include "driver.hpp"
#include "events.hpp"
#include "process_usage.hpp"
#include "simulated_host.hpp"
#include "timing.hpp"

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/result.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <fmt/format.h>
#include <functional>
#include <memory>
#include <optional>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <utility>

namespace troupe::bench {

namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using collectives::unique_fd;

constexpr auto patience = 60s;

struct pipe_ends {
  unique_fd read;
  unique_fd write;
};

pipe_ends make_pipe() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw exception{system_error("pipe")};
  return {unique_fd{ends[0]}, unique_fd{ends[1]}};
}

/// Runs a function in a process of its own. The destructor kills it.
class child {
 public:
  explicit child(const std::function<void(int commands)>& body) {
    auto commands = make_pipe();
    pid_ = ::fork();
    if (pid_ < 0)
      throw exception{system_error("fork")};
    if (pid_ == 0) {
      // Nothing stays behind when this program is killed.
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      commands.write = {};
      run(body, commands.read.get());
    }
    commands_ = std::move(commands.write);
    end_ = unique_fd{static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0))};
    if (!end_)
      throw exception{system_error("pidfd_open")};
  }
  child(const child&) = delete;
  child& operator=(const child&) = delete;
  ~child() {
    ::kill(pid_, SIGKILL);
    wait();
  }

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }
  /// Readable once the process has ended.
  [[nodiscard]] int end() const noexcept { return end_.get(); }

  void command() {
    if (::write(commands_.get(), "c", 1) != 1)
      throw exception{system_error("write")};
  }

  void wait() noexcept {
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }

 private:
  [[noreturn]] static void run(const std::function<void(int commands)>& body, int commands) {
    auto code = 0;
    try {
      body(commands);
    } catch (const std::exception& x) {
      std::fprintf(stderr, "troupe-control-plane: %s\n", x.what());
      code = 1;
    }
    std::fflush(nullptr);
    ::_exit(code);
  }

  pid_t pid_ = -1;
  unique_fd commands_;
  unique_fd end_;
};

/// A directory that is removed at the end.
class scratch_directory {
 public:
  scratch_directory() : path_(fs::temp_directory_path() / fmt::format("troupe-control-plane-{}", ::getpid())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    fs::permissions(path_, fs::perms::owner_all);
  }
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;
  ~scratch_directory() {
    auto ignored = std::error_code{};
    fs::remove_all(path_, ignored);
  }

  [[nodiscard]] const fs::path& path() const noexcept { return path_; }

 private:
  fs::path path_;
};

/// The processes of a run, and what they have written down.
class scene {
 public:
  explicit scene(const run_shape& shape) : shape_(shape) {
    trainer_config config;
    config.scaling = {.num_workers = shape.workers, .shards = shape.workers};
    config.scaling.resources_per_worker.cpus = 1;
    config.run.name = "simulated";
    config.run.storage_path = scratch_.path() / "runs";
    config.failure.replace_lost = false;
    config.cluster.keys = scratch_.path() / "keys";
    for (std::uint32_t first = 0; first < shape.workers; first += shape.workers_per_host) {
      const auto capacity = std::min(shape.workers_per_host, shape.workers - first);
      hosts_.push_back(std::make_unique<child>([&](int commands) {
        run_host({config.cluster.keys, capacity, events(), commands});
      }));
      config.cluster.nodes.push_back(fmt::format("127.0.0.1:{}", wait_for(event_kind::listens).value));
    }
    driver_.emplace([&](int commands) { run_driver({config, events(), commands}); });
  }

  run_measures measure() {
    run_measures result;
    result.workers = shape_.workers;
    result.hosts = static_cast<std::uint32_t>(hosts_.size());
    const auto begin = wait_for(event_kind::begins);
    const auto cpu_before = cpu_time_of(driver_->pid());
    result.start_ms = milliseconds(begin, wait_for(event_kind::formed, 1, shape_.workers));
    result.start_cpu_ms = milliseconds(cpu_time_of(driver_->pid()) - cpu_before);
    wait_for(event_kind::agreed, 1, shape_.workers);
    std::vector<double> decided;
    std::vector<double> formed;
    const auto cpu_formed = cpu_time_of(driver_->pid());
    for (std::uint32_t i = 1; i <= shape_.kills; ++i) {
      hosts_[i % hosts_.size()]->command();
      const auto lost = wait_for(event_kind::lost);
      decided.push_back(milliseconds(lost, wait_for(event_kind::decided, i + 1)));
      formed.push_back(milliseconds(lost, wait_for(event_kind::formed, i + 1, shape_.workers - i)));
    }
    result.regroup_cpu_ms = milliseconds(cpu_time_of(driver_->pid()) - cpu_formed) / std::max(shape_.kills, 1u);
    result.decided_ms = median(decided);
    result.formed_ms = median(formed);
    result.memory_bytes = memory_of(driver_->pid()).most_bytes - begin.value;
    driver_->command();
    if (wait_for(event_kind::ended).value != static_cast<std::uint64_t>(run_status::stopped))
      throw exception{errc::internal, "the run did not end as it was told"};
    return result;
  }

 private:
  [[nodiscard]] event_writer events() const { return event_writer{events_.write.get()}; }

  static double milliseconds(std::chrono::nanoseconds time) {
    return std::chrono::duration<double, std::milli>(time).count();
  }
  static double milliseconds(const event& from, const event& to) {
    return milliseconds(std::chrono::nanoseconds{to.time_ns - from.time_ns});
  }

  /// Waits for `count` more of a kind, and returns the last of them.
  event wait_for(event_kind kind, std::optional<std::uint64_t> value = {}, std::uint32_t count = 1) {
    const auto is_wanted = [&](const event& x) { return x.kind == kind && (!value || x.value == *value); };
    for (const auto deadline = clock_type::now() + patience;;) {
      auto found = std::uint32_t{0};
      for (const auto& each : unread_)
        if (is_wanted(each) && ++found == count) {
          const auto result = each;
          std::erase_if(unread_, is_wanted);
          return result;
        }
      if (!read_events(deadline))
        throw exception{errc::timed_out,
                        fmt::format("{} of {} workers: after a minute, event {} has come {} times "
                                    "instead of {}",
                                    shape_.workers, hosts_.size(), static_cast<int>(kind), found, count)};
    }
  }

  /// False if none come in time.
  bool read_events(clock_type::time_point deadline) {
    std::vector<pollfd> awaited{{events_.read.get(), POLLIN, 0}};
    for (const auto& each : hosts_)
      awaited.push_back({each->end(), POLLIN, 0});
    if (driver_)
      awaited.push_back({driver_->end(), POLLIN, 0});
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock_type::now()).count();
    if (::poll(awaited.data(), awaited.size(), static_cast<int>(std::max<long>(left, 0))) <= 0)
      return false;
    if ((awaited.front().revents & POLLIN) == 0)
      throw exception{errc::worker_lost, "a process of the simulated run has ended"};
    std::array<event, 256> some;
    const auto size = ::read(events_.read.get(), some.data(), sizeof(some));
    if (size <= 0)
      throw exception{system_error("read")};
    unread_.insert(unread_.end(), some.begin(), some.begin() + size / static_cast<ssize_t>(sizeof(event)));
    return true;
  }

  run_shape shape_;
  scratch_directory scratch_;
  pipe_ends events_ = make_pipe();
  std::vector<event> unread_;
  std::vector<std::unique_ptr<child>> hosts_;
  std::optional<child> driver_;
};

} // namespace

run_measures measure_run(const run_shape& shape) {
  return scene{shape}.measure();
}

} // namespace troupe::bench
