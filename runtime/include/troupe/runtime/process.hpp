#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <sys/types.h>
#include <vector>

namespace troupe::runtime {

/// Where a child finds the bytes of `process_spec::bootstrap`.
inline constexpr int bootstrap_fd = 3;

/// Where a child finds the read end of its supervisor's lifeline.
inline constexpr int lifeline_fd = 4;

/// Where a child finds the socket of `process_spec::descriptor_socket`: a worker makes its `descriptor_link` of it.
inline constexpr int descriptor_fd = 5;

/// The exit code of a process that ended because its lifeline closed: as if terminated by SIGTERM.
inline constexpr int lifeline_exit_code = 143;

/// Output is handed on in lines; a longer one comes in pieces of this size.
inline constexpr std::size_t max_line_bytes = 8192;

/// How many lines of output an `exit_report` repeats.
inline constexpr std::size_t max_last_lines = 20;

enum class output_stream : std::uint8_t { out, err };

/// A program to start, and all that it gets from us.
struct process_spec {
  /// The program, opened for reading (see `program_file`); borrowed until `start` returns. Must be a binary: the kernel
  /// cannot run a script through a descriptor that closes on exec.
  int program_fd = -1;

  /// Names the program in errors.
  std::string program;

  /// Complete, with the program's name in front.
  std::vector<std::string> argv;

  /// Complete, each as "NAME=value": nothing is inherited.
  std::vector<std::string> env;

  /// What the child reads with `read_bootstrap(bootstrap_fd)`: the place for secrets, which neither its command line
  /// nor its environment can keep.
  std::string bootstrap;

  /// What the child gets as `descriptor_fd`, borrowed until `start` returns; none: nothing is open there.
  int descriptor_socket = -1;

  /// The child's working directory; empty for ours.
  std::string directory;
};

/// How a process ended.
struct exit_report {
  pid_t pid = 0;

  /// Set when it exited. When neither this nor `signal` is set, somebody else in this program took its status.
  std::optional<int> exit_code;

  /// Set when a signal ended it.
  std::optional<int> signal;

  bool core_dumped = false;

  /// What points to the kernel's out-of-memory killer; empty without a sign of it.
  std::string evidence;

  /// The end of its output and error stream, oldest first.
  std::vector<std::string> last_lines;

  [[nodiscard]] bool succeeded() const noexcept { return exit_code == 0; }

  /// "exit code 3", or "killed by signal 9 (SIGKILL)", and the evidence.
  [[nodiscard]] std::string describe() const;
};

/// What a supervisor tells its owner. Called on its thread, so they must be short; they may call `start`, `kill` and
/// `kill_all`, but not destroy the supervisor. They must not throw.
struct process_callbacks {
  /// One line, without its end, valid during the call. A last line without an end is handed on when the process ends.
  std::function<void(pid_t, output_stream, std::string_view)> on_output;

  /// Once for each started process, after all its output: it is dead and reaped. A short-lived one may be
  /// reported before `start` has returned its pid to another thread.
  std::function<void(const exit_report&)> on_exit;
};

/// Starts child processes and watches them. All that it starts dies with it, also when this process is killed: the
/// children ask the kernel for it, which ties them to the thread that started them, so one thread does so for good.
///
/// A child gets: a session of its own; standard input from /dev/null; pipes to us as output and error stream; its
/// bootstrap and lifeline descriptors, the socket that its specification names, and no other; default signal handling
/// and an empty signal mask. When a child ends, whatever is left in its process group is killed.
///
/// All functions may be called from any thread.
class process_supervisor {
 public:
  /// Fails when the kernel has no more descriptors or threads for us.
  [[nodiscard]] static expected<process_supervisor> make(process_callbacks callbacks);

  process_supervisor(process_supervisor&&) noexcept;
  process_supervisor& operator=(process_supervisor&&) noexcept;

  /// Kills and reaps all children. Calls no callback once it has begun; one that is under way ends first.
  ~process_supervisor();

  /// Returns once the child executes the program. Fails with the cause when it cannot.
  [[nodiscard]] expected<pid_t> start(const process_spec& spec);

  /// Sends a signal to one child, SIGKILL to its whole process group. False when it has ended already.
  bool kill(pid_t pid, int signal);

  /// Sends SIGKILL to all children and their process groups.
  void kill_all();

  /// The children that have not been reaped yet.
  [[nodiscard]] std::vector<pid_t> running() const;

 private:
  class impl;

  explicit process_supervisor(std::unique_ptr<impl> state);

  std::unique_ptr<impl> impl_;
};

/// For the child: ends this process with `lifeline_exit_code`, at once and without clean-up, when the supervisor at the
/// other end of `fd` is gone. Starts a thread that takes `fd` over and keeps it from the programs that this one starts.
void watch_lifeline(int fd);

/// For the child: everything that the supervisor has put into the bootstrap. Closes `fd`, so call it once.
[[nodiscard]] expected<std::string> read_bootstrap(int fd);

} // namespace troupe::runtime
