#include "process/child_launcher.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <linux/close_range.h>
#include <sched.h>
#include <string_view>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

/// glibc's `clone` under its other name. ThreadSanitizer intercepts `clone` and treats every child as a fork, which
/// breaks its own state when the child shares our memory.
// NOLINTNEXTLINE(bugprone-reserved-identifier,readability-identifier-naming): it is the name in glibc.
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument, ...);

namespace troupe::runtime {

namespace {

/// Descriptors meant for the child are kept at or above this number, clear of the ones the child receives them under.
constexpr int lowest_kept_fd = 10;

/// The step at which a child failed before it executed its program.
struct launch_failure {
  const char* step = nullptr;
  int code = 0;
};

/// A child's data between clone and exec, prepared in advance because the child may neither allocate nor lock.
struct launch_plan {
  pid_t parent = 0;
  /// Indexed by the descriptor number in the child. The last two are -1 if the child gets no such sockets.
  std::array<int, reuse_fd + 1> fds{};
  int program_fd = -1;
  unsigned fd_limit = 0;
  const char* directory = nullptr;
  char* const* argv = nullptr;
  char* const* env = nullptr;
  /// Written by the child, which shares our memory until it executes the program.
  launch_failure failure;
};

// The child uses our memory and a stack that sanitizers know nothing about.
#define TROUPE_IN_CHILD __attribute__((no_sanitize_address, no_sanitize_undefined, no_sanitize_thread, noinline))

TROUPE_IN_CHILD void reset_signals() {
  // As large as the kernel's struct sigaction on any machine. All zeros mean SIG_DFL without flags.
  static const unsigned long default_action[8] = {};
  static const unsigned long ignore[8] = {1};
  constexpr std::size_t mask_bytes = 8;
  // A terminal may have signalled the parent's process group before this process left it. Ignoring such a signal
  // discards it if it is pending.
  static constexpr int from_terminal[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP};
  for (auto signal : from_terminal)
    syscall(SYS_rt_sigaction, signal, ignore, nullptr, mask_bytes);
  for (int i = 1; i <= 64; ++i)
    syscall(SYS_rt_sigaction, i, default_action, nullptr, mask_bytes);
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, default_action, nullptr, mask_bytes);
}

TROUPE_IN_CHILD void close_on_exec(unsigned first, unsigned limit) {
  if (syscall(SYS_close_range, first, ~0U, CLOSE_RANGE_CLOEXEC) == 0)
    return;
  for (auto fd = first; fd < limit; ++fd)
    syscall(SYS_fcntl, fd, F_SETFD, FD_CLOEXEC);
}

/// Returns the name of the step that failed; does not return if the program runs.
TROUPE_IN_CHILD const char* execute(const launch_plan& plan) {
  if (syscall(SYS_setsid) < 0)
    return "setsid";
  if (syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
    return "prctl(PR_SET_PDEATHSIG)";
  if (syscall(SYS_getppid) != plan.parent)
    return "the parent process has ended";
  auto last = plan.fds[descriptor_fd] < 0 ? lifeline_fd : plan.fds[reuse_fd] < 0 ? descriptor_fd : reuse_fd;
  for (int i = 0; i <= last; ++i)
    if (syscall(SYS_dup3, plan.fds[static_cast<std::size_t>(i)], i, 0) < 0)
      return "dup3";
  close_on_exec(static_cast<unsigned>(last) + 1, plan.fd_limit);
  if (plan.directory != nullptr && syscall(SYS_chdir, plan.directory) < 0)
    return "chdir";
  reset_signals();
  syscall(SYS_execveat, plan.program_fd, "", plan.argv, plan.env, AT_EMPTY_PATH);
  return "exec";
}

TROUPE_IN_CHILD int child_main(void* argument) {
  auto& plan = *static_cast<launch_plan*>(argument);
  plan.failure.step = execute(plan);
  plan.failure.code = errno;
  syscall(SYS_exit_group, 127);
  return 127;
}

#undef TROUPE_IN_CHILD

/// The child's stack between clone and exec, with a guard page below it.
class child_stack {
 public:
  child_stack()
      : memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0)) {
    if (*this)
      mprotect(memory_, 4096, PROT_NONE);
  }
  child_stack(const child_stack&) = delete;
  child_stack& operator=(const child_stack&) = delete;
  ~child_stack() {
    if (*this)
      munmap(memory_, bytes);
  }

  [[nodiscard]] explicit operator bool() const noexcept { return memory_ != MAP_FAILED; }
  [[nodiscard]] void* top() const noexcept { return static_cast<std::byte*>(memory_) + bytes; }

 private:
  static constexpr std::size_t bytes = 1 << 17;
  void* memory_;
};

/// Moves a descriptor to `lowest_kept_fd` or above.
expected<unique_fd> kept(unique_fd fd, std::string_view what) {
  if (!fd)
    return fail(system_error(what));
  if (fd.get() >= lowest_kept_fd)
    return fd;
  unique_fd copy{fcntl(fd.get(), F_DUPFD_CLOEXEC, lowest_kept_fd)};
  if (!copy)
    return fail(system_error(what));
  return copy;
}

expected<pipe_ends> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0)
    return fail(system_error("cannot make a pipe"));
  unique_fd read_end{ends[0]};
  unique_fd write_end{ends[1]};
  auto read = kept(std::move(read_end), "cannot make a pipe");
  auto write = kept(std::move(write_end), "cannot make a pipe");
  if (!read)
    return fail(std::move(read.error()));
  if (!write)
    return fail(std::move(write.error()));
  return pipe_ends{std::move(*read), std::move(*write)};
}

/// A pipe for a child's output: our end is non-blocking, the child's is not.
expected<pipe_ends> make_output_pipe() {
  auto ends = make_pipe();
  if (ends)
    fcntl(ends->read.get(), F_SETFL, O_NONBLOCK);
  return ends;
}

/// A null-terminated array for exec; borrows the strings.
std::vector<char*> pointers(const std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (const auto& x : strings)
    result.push_back(const_cast<char*>(x.c_str()));
  result.push_back(nullptr);
  return result;
}

unsigned fd_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
    return 1024;
  return static_cast<unsigned>(std::min<rlim_t>(limit.rlim_cur, 1 << 20));
}

bool is_script(int fd) {
  std::array<char, 2> start{};
  return pread(fd, start.data(), start.size(), 0) == 2 && start == std::array{'#', '!'};
}

/// Advice for the user about a failed exec.
std::string advice(const process_spec& spec, int code) {
  switch (code) {
  case ENOENT:
    return is_script(spec.program_fd)
               ? "scripts cannot be started; name the program that the script runs"
               : "the dynamic linker that the program names does not exist; install it on this host";
  case ENOEXEC:
    return "the file is not a program for this machine; build it for this processor";
  case EACCES:
    return "make it executable (chmod +x) and keep it on a file system that is not mounted noexec";
  case E2BIG:
    return "its arguments and environment are too long: pass large values in a file";
  default:
    return {};
  }
}

error launch_error(const process_spec& spec, const launch_failure& failure) {
  errno = failure.code;
  auto where =
      failure.step == std::string_view{"chdir"} ? fmt::format(" in the directory {}", spec.directory) : std::string{};
  auto result = system_error(fmt::format("cannot start {}{}: {}", spec.program, where, failure.step));
  if (failure.step != std::string_view{"exec"})
    return result;
  if (auto hint = advice(spec, failure.code); !hint.empty())
    result.message += "; " + hint;
  return result;
}

/// Our end and the child's.
struct socket_ends {
  unique_fd ours;
  unique_fd theirs;
};

expected<socket_ends> make_reuse_sockets() {
  constexpr auto what = "cannot make a pair of sockets";
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return fail(system_error(what));
  auto result = socket_ends{unique_fd{ends[0]}, unique_fd{ends[1]}};
  TROUPE_TRY(result.theirs, kept(std::move(result.theirs), what));
  return result;
}

} // namespace

expected<unique_fd> make_bootstrap(std::string_view bytes) {
  constexpr auto what = "cannot pass the bootstrap to the child";
  auto fd = kept(unique_fd{memfd_create("troupe-bootstrap", MFD_CLOEXEC | MFD_ALLOW_SEALING)}, what);
  if (!fd)
    return fd;
  while (!bytes.empty()) {
    auto n = write(fd->get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return fail(system_error(what));
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
  if (lseek(fd->get(), 0, SEEK_SET) != 0 ||
      fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) != 0)
    return fail(system_error(what));
  return fd;
}

expected<child_launcher> child_launcher::make() {
  TROUPE_TRY(auto null, kept(unique_fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}, "/dev/null"));
  TROUPE_TRY(auto lifeline, make_pipe());
  return child_launcher{std::move(null), std::move(lifeline)};
}

expected<child> child_launcher::launch(const process_spec& spec) const {
  TROUPE_TRY(auto out, make_output_pipe());
  TROUPE_TRY(auto err, make_output_pipe());
  TROUPE_TRY(auto bootstrap, make_bootstrap(spec.bootstrap));
  unique_fd program{fcntl(spec.program_fd, F_DUPFD_CLOEXEC, lowest_kept_fd)};
  unique_fd socket;
  if (spec.descriptor_socket >= 0)
    socket.reset(fcntl(spec.descriptor_socket, F_DUPFD_CLOEXEC, lowest_kept_fd));
  socket_ends reuse;
  if (spec.is_reusable) {
    TROUPE_TRY(reuse, make_reuse_sockets());
  }
  child_stack stack;
  if (!program || (spec.descriptor_socket >= 0 && !socket) || !stack)
    return fail(system_error("cannot start " + spec.program));

  auto argv = pointers(spec.argv);
  auto env = pointers(spec.env);
  launch_plan plan{.parent = getpid(),
                   .fds = {null_.get(), out.write.get(), err.write.get(), bootstrap.get(), lifeline_.read.get(),
                           socket.get(), reuse.theirs.get()},
                   .program_fd = program.get(),
                   .fd_limit = fd_limit(),
                   .directory = spec.directory.empty() ? nullptr : spec.directory.c_str(),
                   .argv = argv.data(),
                   .env = env.data(),
                   .failure = {}};
  child result;
  // The child shares our memory, which avoids copying page tables: a driver may have gigabytes mapped. This thread is
  // suspended until the child executes its program or exits. All its signals are blocked, so no handler runs on the
  // shared memory.
  int pidfd = -1;
  result.pid = __clone(&child_main, stack.top(), CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &plan, &pidfd);
  if (result.pid < 0) {
    auto reason = system_error("cannot start " + spec.program);
    reason.message += "; check the limits of processes and memory on this host (ulimit -u, pids.max)";
    return fail(std::move(reason));
  }
  result.pidfd = unique_fd{pidfd};
  if (plan.failure.step != nullptr) {
    result.reap();
    return fail(launch_error(spec, plan.failure));
  }
  result.reuse_socket = std::move(reuse.ours);
  result.outputs[0] = {std::move(out.read), output_stream::out};
  result.outputs[1] = {std::move(err.read), output_stream::err};
  return result;
}

} // namespace troupe::runtime
