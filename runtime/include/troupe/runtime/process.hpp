#pragma once

#include <troupe/collectives/unique_fd.hpp>
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

/// The child's descriptor for the bytes of `process_spec::bootstrap`.
inline constexpr int bootstrap_fd = 3;

/// The child's descriptor for the read end of its supervisor's lifeline, a pipe that closes when the supervisor ends.
inline constexpr int lifeline_fd = 4;

/// The child's descriptor for `process_spec::descriptor_socket`, from which a worker makes its `descriptor_link`.
inline constexpr int descriptor_fd = 5;

/// The child's descriptor for the socket by which a reusable one gets another bootstrap (see `await_next_bootstrap`).
inline constexpr int reuse_fd = 6;

/// The exit code of a process whose lifeline closed, as if SIGTERM had ended it.
inline constexpr int lifeline_exit_code = 143;

/// The longest line of output that is reported; a longer one is reported in pieces of this size.
inline constexpr std::size_t max_line_bytes = 8192;

/// How many lines of output an `exit_report` contains.
inline constexpr std::size_t max_last_lines = 20;

enum class output_stream : std::uint8_t { out, err };

/// A program to start and everything that it inherits.
struct process_spec {
  /// The program, opened for reading (see `program_file`); borrowed until `start` returns. It must be a binary, because
  /// the kernel cannot run a script through a descriptor that closes on exec.
  int program_fd = -1;

  /// Names the program in errors.
  std::string program;

  /// The complete arguments, starting with the program's name.
  std::vector<std::string> argv;

  /// The complete environment, as "NAME=value": nothing is inherited.
  std::vector<std::string> env;

  /// The text that the child reads with `read_bootstrap(bootstrap_fd)`. Put secrets here: other processes can read its
  /// command line and environment.
  std::string bootstrap;

  /// The child's `descriptor_fd`; borrowed until `start` returns. -1 means none.
  int descriptor_socket = -1;

  /// Whether the child can be given another bootstrap by `reuse`. Needs a `descriptor_socket`.
  bool is_reusable = false;

  /// The child's working directory; empty means the current one.
  std::string directory;
};

/// How a process ended.
struct exit_report {
  pid_t pid = 0;

  /// Set if it exited. If neither this nor `signal` is set, another part of this program took its exit status.
  std::optional<int> exit_code;

  /// Set if a signal ended it.
  std::optional<int> signal;

  bool core_dumped = false;

  /// Its name in `ps` when it ended.
  std::string name;

  /// Why the kernel's out-of-memory killer is suspected; empty if it is not.
  std::string evidence;

  /// The end of its output and error stream, oldest first.
  std::vector<std::string> last_lines;

  /// "exit code 3", or "killed by signal 9 (SIGKILL)", and the evidence.
  [[nodiscard]] std::string describe() const;
};

/// A supervisor's notifications to its owner. They run on the supervisor's thread and must be short. They may call
/// `start`, `kill` and `kill_all`, but must neither destroy the supervisor nor throw.
struct process_callbacks {
  /// One line without its line feed, valid during the call. An unterminated last line is reported when the process
  /// ends.
  std::function<void(pid_t, output_stream, std::string_view)> on_output;

  /// Called once for each started process, after all its output, when it has been reaped. A short-lived process may be
  /// reported before `start` has returned its pid to another thread (`start_soon` comes first).
  std::function<void(const exit_report&)> on_exit;

  /// A reusable child waits for another bootstrap. Called after all output before that.
  std::function<void(pid_t)> on_idle = {};
};

/// Starts child processes and watches them. The children die with the supervisor, also if this process is killed: they
/// ask the kernel for it (PR_SET_PDEATHSIG). That ties them to the thread that started them, so threads of the
/// supervisor start them all: one for each file system that programs are on, since executing a program waits for its
/// disk.
///
/// A child gets a session of its own; standard input from /dev/null; pipes to the supervisor as output and error
/// stream; its bootstrap, its lifeline, the socket that its specification names and, if it is reusable, one to its
/// supervisor, but no other descriptor; default
/// signal handling and an empty signal mask. When a child ends, the rest of its process group is killed.
///
/// All functions may be called from any thread.
class process_supervisor {
 public:
  /// Fails if the limit on descriptors or threads is reached.
  [[nodiscard]] static expected<process_supervisor> make(process_callbacks callbacks);

  process_supervisor(process_supervisor&&) noexcept;
  process_supervisor& operator=(process_supervisor&&) noexcept;

  /// Kills and reaps all children. Waits for a callback that is running, and calls none afterwards.
  ~process_supervisor();

  /// Returns once the child executes the program. Fails with the cause if it cannot.
  [[nodiscard]] expected<pid_t> start(const process_spec& spec);

  /// Does not wait: starts the child after earlier requests for programs of the same file system. Calls `done` on the
  /// supervisor's thread with the result of `start`, before any other report of that child. The descriptors that `spec`
  /// borrows must stay open until then. `done` is not called if the supervisor is destroyed first.
  void start_soon(process_spec spec, std::function<void(expected<pid_t>)> done);

  /// Gives a child that is idle another bootstrap, and another `descriptor_socket`. Does not wait. Fails if the child
  /// is ending; its end is reported as ever.
  [[nodiscard]] expected<void> reuse(pid_t pid, const std::string& bootstrap, int descriptor_socket);

  /// Sends a signal to one child, or SIGKILL to its whole process group. False if it has already ended.
  bool kill(pid_t pid, int signal);

 private:
  class impl;

  explicit process_supervisor(std::unique_ptr<impl> state);

  std::unique_ptr<impl> impl_;
};

/// For the child: ends this process with `lifeline_exit_code`, at once and without clean-up, when the supervisor at the
/// other end of `fd` is gone. Starts a thread that owns `fd`, and sets `fd` to close on exec.
void watch_lifeline(int fd);

/// For the child: reads the whole bootstrap. Closes `fd`, so call it once.
[[nodiscard]] expected<std::string> read_bootstrap(int fd);

/// What `process_supervisor::reuse` sends.
struct next_bootstrap {
  std::string text;
  collectives::unique_fd descriptor_socket;
};

/// For a reusable child: tells the supervisor that this process is idle, and waits for its next bootstrap. Fails with
/// `errc::node_lost` when there will be none.
[[nodiscard]] expected<next_bootstrap> await_next_bootstrap(int fd);

} // namespace troupe::runtime
