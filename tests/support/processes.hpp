#pragma once

#include <scratch_directory.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <ostream>
#include <poll.h>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

extern char** environ;

/// Real processes for tests: started, waited for and found again, without relying on the code under test.
namespace troupe::testing {

using namespace std::chrono_literals;

/// The factor by which builds with sanitizers are slower; defined by the build.
#ifndef TROUPE_TEST_PATIENCE
#define TROUPE_TEST_PATIENCE 1
#endif

/// How long anything may take before a test counts it as hung; far more than a loaded machine needs.
inline constexpr auto hang_limit = std::chrono::milliseconds{60'000} * TROUPE_TEST_PATIENCE;

inline void write_file(const std::filesystem::path& path, std::string_view text) {
  std::ofstream{path, std::ios::binary | std::ios::trunc} << text;
}

/// Polls until `condition` holds; false if it does not within `limit`.
inline bool becomes_true(const std::function<bool()>& condition, std::chrono::milliseconds limit = hang_limit) {
  for (auto end = std::chrono::steady_clock::now() + limit; !condition(); std::this_thread::sleep_for(2ms))
    if (std::chrono::steady_clock::now() > end)
      return condition();
  return true;
}

/// Sends a signal to one process; throws if `pid` names none, because 0 and -1 would reach the test's own group or all
/// processes of the machine.
inline void send_signal(pid_t pid, int number) {
  if (pid <= 0)
    throw std::runtime_error{"no process to signal: its pid is " + std::to_string(pid)};
  ::kill(pid, number);
}

/// Identifies one process during this object's lifetime, even if its pid is reused.
class process_watch {
 public:
  explicit process_watch(pid_t pid) : fd_(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0))) {}
  process_watch(process_watch&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  process_watch& operator=(process_watch&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~process_watch() {
    if (fd_ >= 0)
      ::close(fd_);
  }

  /// Whether it has ended or ends within `limit`.
  [[nodiscard]] bool ends(std::chrono::milliseconds limit = hang_limit) const {
    if (fd_ < 0)
      return true;
    auto end = std::chrono::steady_clock::now() + limit;
    auto waiting = pollfd{fd_, POLLIN, 0};
    for (;;) {
      auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
      auto count = ::poll(&waiting, 1, std::max(static_cast<int>(left.count()), 0));
      if (count > 0)
        return true;
      if (count == 0 || errno != EINTR)
        return false;
    }
  }

 private:
  int fd_;
};

/// Whether all of them end within `limit`.
inline bool all_end(const std::vector<process_watch>& watches, std::chrono::milliseconds limit = hang_limit) {
  auto end = std::chrono::steady_clock::now() + limit;
  return std::ranges::all_of(watches, [end](const process_watch& each) {
    auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    return each.ends(std::max(left, 0ms));
  });
}

inline std::vector<process_watch> watch_all(const std::vector<pid_t>& pids) {
  std::vector<process_watch> result;
  result.reserve(pids.size());
  for (auto pid : pids)
    result.emplace_back(pid);
  return result;
}

/// The environment with which a process was started. Empty for one that has ended.
inline std::map<std::string, std::string> environment_of(pid_t pid) {
  std::map<std::string, std::string> result;
  auto text = read_file("/proc/" + std::to_string(pid) + "/environ");
  for (std::size_t begin = 0; begin < text.size();) {
    auto entry = std::string_view{text}.substr(begin, text.find('\0', begin) - begin);
    if (auto mark = entry.find('='); mark != std::string_view::npos)
      result.emplace(entry.substr(0, mark), entry.substr(mark + 1));
    begin += entry.size() + 1;
  }
  return result;
}

/// All living processes that were started with this variable.
inline std::vector<pid_t> processes_with(const std::string& variable, const std::string& value) {
  std::vector<pid_t> result;
  auto code = std::error_code{};
  for (auto i = std::filesystem::directory_iterator{"/proc", code}; i != std::filesystem::directory_iterator{};
       i.increment(code)) {
    auto name = i->path().filename().string();
    auto pid = pid_t{0};
    if (auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), pid);
        bad != std::errc{} || end != name.data() + name.size() || pid == ::getpid())
      continue;
    auto variables = environment_of(pid);
    if (auto found = variables.find(variable); found != variables.end() && found->second == value)
      result.push_back(pid);
  }
  std::ranges::sort(result);
  return result;
}

/// The parent of `pid`; 0 if it is gone.
inline pid_t parent_of(pid_t pid) {
  auto text = read_file("/proc/" + std::to_string(pid) + "/stat");
  // The name is in parentheses and may contain any character; state and parent follow the last parenthesis.
  auto mark = text.rfind(')');
  return mark == std::string::npos ? 0 : static_cast<pid_t>(std::strtol(text.c_str() + mark + 4, nullptr, 10));
}

/// The start time of `pid` in kernel ticks, which distinguishes processes with the same pid. 0 if it is gone.
inline std::uint64_t start_time_of(pid_t pid) {
  auto text = read_file("/proc/" + std::to_string(pid) + "/stat");
  auto mark = text.rfind(')');
  if (mark == std::string::npos)
    return 0;
  auto in = std::istringstream{text.substr(mark + 1)};
  std::string field;
  // The state is the third field, the start time the twenty-second.
  for (int i = 3; i <= 22; ++i)
    in >> field;
  return std::strtoull(field.c_str(), nullptr, 10);
}

/// The session of `pid`; 0 if it is gone.
inline pid_t session_of(pid_t pid) {
  return std::max(::getsid(pid), 0);
}

/// How a process ended: with a code, or by a signal.
struct exit_status {
  std::optional<int> code;
  std::optional<int> signal;

  bool operator==(const exit_status&) const = default;
};

/// Used in messages of failed assertions.
inline std::ostream& operator<<(std::ostream& out, const exit_status& status) {
  return status.code ? out << "exit code " << *status.code : out << "signal " << status.signal.value_or(0);
}

/// A program with its arguments, additions to our environment, and the file for its standard input.
struct command {
  std::vector<std::string> argv;
  std::map<std::string, std::string> environment = {};
  std::filesystem::path input = "/dev/null";
  /// A pipe for its standard error, whose reader writes the file `OUTPUT.err`; empty: the process writes that itself.
  std::filesystem::path error = {};
};

/// A process started by the test, leader of a process group. It ends with the test and with this object.
class child_process {
 public:
  /// Standard output and error go to the files `OUTPUT.out` and `OUTPUT.err`.
  child_process(const command& what, const std::filesystem::path& output)
      : out_(output.string() + ".out"), err_(output.string() + ".err") {
    auto variables = std::map<std::string, std::string>{};
    for (auto** entry = environ; *entry != nullptr; ++entry)
      if (auto* mark = std::strchr(*entry, '='))
        variables[std::string{*entry, mark}] = mark + 1;
    for (const auto& [name, value] : what.environment)
      variables[name] = value;
    auto assignments = std::vector<std::string>{};
    for (const auto& [name, value] : variables)
      assignments.emplace_back(name).append("=").append(value);
    auto argv = pointers(what.argv);
    auto env = pointers(assignments);
    auto in = ::open(what.input.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);
    auto out = ::open(out_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    const auto& error = what.error.empty() ? err_ : what.error;
    auto err = ::open(error.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (in < 0 || out < 0 || err < 0)
      throw std::runtime_error{"cannot write to " + output.string()};
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::setpgid(0, 0);
      ::dup2(in, 0);
      ::dup2(out, 1);
      ::dup2(err, 2);
      ::execve(argv[0], argv.data(), env.data());
      ::_exit(127);
    }
    for (auto fd : {in, out, err})
      ::close(fd);
    if (pid_ < 0)
      throw std::runtime_error{"cannot start " + what.argv.at(0)};
    ::setpgid(pid_, pid_);
    watch_.emplace(pid_);
  }
  child_process(child_process&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        out_(std::move(other.out_)),
        err_(std::move(other.err_)),
        watch_(std::move(other.watch_)),
        status_(other.status_) {}
  child_process& operator=(child_process&&) = delete;
  ~child_process() {
    if (pid_ <= 0 || status_)
      return;
    ::kill(-pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  /// Its output so far.
  [[nodiscard]] std::string out() const { return read_file(out_); }
  [[nodiscard]] std::string err() const { return read_file(err_); }

  [[nodiscard]] bool running() { return !status_ && !watch_->ends(0ms); }

  void signal(int number) const { send_signal(pid_, number); }

  /// Sends a signal as a terminal does: to all members of the process group.
  void signal_group(int number) const {
    send_signal(pid_, 0);
    ::kill(-pid_, number);
  }

  /// Returns how it ended. Kills a hung process and throws.
  exit_status wait(std::chrono::milliseconds limit = hang_limit) {
    if (status_)
      return *status_;
    auto in_time = watch_->ends(limit);
    if (!in_time)
      ::kill(-pid_, SIGKILL);
    auto status = 0;
    ::waitpid(pid_, &status, 0);
    status_ = exit_status{};
    if (WIFEXITED(status))
      status_->code = WEXITSTATUS(status);
    else
      status_->signal = WTERMSIG(status);
    if (!in_time)
      throw std::runtime_error{"a process hung and was killed; its output:\n" + out() + err()};
    return *status_;
  }

 private:
  static std::vector<char*> pointers(const std::vector<std::string>& texts) {
    std::vector<char*> result;
    result.reserve(texts.size() + 1);
    for (const auto& text : texts)
      result.push_back(const_cast<char*>(text.c_str()));
    result.push_back(nullptr);
    return result;
  }

  pid_t pid_ = -1;
  std::filesystem::path out_;
  std::filesystem::path err_;
  std::optional<process_watch> watch_;
  std::optional<exit_status> status_;
};

} // namespace troupe::testing
