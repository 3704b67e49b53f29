#include <troupe/runtime/process.hpp>

#include "process/signals_blocked.hpp"

#include <troupe/runtime/program.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fcntl.h>
#include <fstream>
#include <future>
#include <linux/close_range.h>
#include <map>
#include <mutex>
#include <sched.h>
#include <span>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <system_error>
#include <thread>
#include <unistd.h>

/// glibc's `clone` under its other name: ThreadSanitizer intercepts the first and takes every child for a fork, which
/// breaks its own state when the child shares our memory.
extern "C" int __clone(int (*function)(void*), void* stack, int flags, void* argument, ...);

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;

/// How long a dead child's pipes may be kept open by processes that it has left behind.
constexpr auto drain_window = std::chrono::milliseconds{100};

/// How long the destructor waits for children that the kernel cannot end, as under a broken disk or device.
constexpr auto reap_window = std::chrono::seconds{10};

/// Descriptors for the child are kept above the numbers that it gets them under.
constexpr int lowest_kept_fd = 10;

constexpr std::size_t pipe_bytes = 1 << 16;

/// Why a child did not get as far as its program.
struct launch_failure {
  const char* step = nullptr;
  int code = 0;
};

/// All that a child needs between clone and exec, prepared beforehand: it may neither allocate nor lock.
struct launch_plan {
  pid_t parent = 0;
  /// By the numbers that the child gets them under. The last is -1 when it gets none.
  std::array<int, descriptor_fd + 1> fds{};
  int program_fd = -1;
  unsigned fd_limit = 0;
  const char* directory = nullptr;
  char* const* argv = nullptr;
  char* const* env = nullptr;
  /// Written by the child: it shares our memory until it executes.
  launch_failure failure;
};

// The child runs on our memory and on a stack that sanitizers do not know.
#define TROUPE_IN_CHILD __attribute__((no_sanitize_address, no_sanitize_undefined, no_sanitize_thread, noinline))

TROUPE_IN_CHILD void reset_signals() {
  // As large as the kernel's struct sigaction on any machine; all zero it is SIG_DFL without flags.
  static const unsigned long default_action[8] = {};
  static const unsigned long ignore[8] = {1};
  constexpr std::size_t mask_bytes = 8;
  // What a terminal sent to the parent's process group before this one had left it is pending, and forgotten so.
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

/// The step that failed, or nothing when the program runs; then it does not return.
TROUPE_IN_CHILD const char* execute(const launch_plan& plan) {
  if (syscall(SYS_setsid) < 0)
    return "setsid";
  if (syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) < 0)
    return "prctl(PR_SET_PDEATHSIG)";
  if (syscall(SYS_getppid) != plan.parent)
    return "its parent has ended";
  auto last = plan.fds[descriptor_fd] < 0 ? lifeline_fd : descriptor_fd;
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

/// A stack for the moment between clone and exec, with a guard page below.
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

struct pipe_ends {
  unique_fd read;
  unique_fd write;
};

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

/// A pipe for a child's output: we read without blocking, the child writes as it likes.
expected<pipe_ends> make_output_pipe() {
  auto ends = make_pipe();
  if (ends)
    fcntl(ends->read.get(), F_SETFL, O_NONBLOCK);
  return ends;
}

expected<unique_fd> make_bootstrap(std::string_view bytes) {
  constexpr auto what = "cannot pass the bootstrap on";
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

/// Null-terminated, as exec wants it; borrows the strings.
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

/// What to do about an exec that failed.
std::string advice(const process_spec& spec, int code) {
  switch (code) {
  case ENOENT:
    return is_script(spec.program_fd) ? "a script cannot be started here: name the program that it runs"
                                      : "the dynamic linker that the program names is absent: install it on this host";
  case ENOEXEC:
    return "it is no program for this machine: build it for this kind of processor";
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
  auto where = failure.step == std::string_view{"chdir"} ? " in the directory " + spec.directory : std::string{};
  auto result = system_error("cannot start " + spec.program + where + ": " + failure.step);
  if (failure.step != std::string_view{"exec"})
    return result;
  if (auto hint = advice(spec, failure.code); !hint.empty())
    result.message += "; " + hint;
  return result;
}

/// A counter of processes that the kernel has killed for want of memory.
struct oom_counter {
  std::string path;
  std::string scope;

  [[nodiscard]] std::optional<std::uint64_t> read() const {
    constexpr std::string_view key = "oom_kill ";
    std::ifstream file{path};
    for (std::string line; std::getline(file, line);)
      if (line.starts_with(key))
        return std::strtoull(line.c_str() + key.size(), nullptr, 10);
    return std::nullopt;
  }
};

/// The counters of our control group (children stay in it) in its two versions, and that of the machine.
std::vector<oom_counter> find_oom_counters() {
  std::vector<oom_counter> candidates;
  auto add = [&candidates](std::string path) { candidates.push_back({std::move(path), "control group"}); };
  std::ifstream groups{"/proc/self/cgroup"};
  for (std::string line; std::getline(groups, line);) {
    auto first = line.find(':');
    auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos)
      continue;
    auto controllers = line.substr(first, second - first) + ":";
    std::ranges::replace(controllers, ',', ':');
    auto group = line.substr(second + 1);
    if (controllers == "::") {
      add("/sys/fs/cgroup" + group + "/memory.events");
      add("/sys/fs/cgroup/memory.events");
    } else if (controllers.find(":memory:") != std::string::npos) {
      add("/sys/fs/cgroup/memory" + group + "/memory.oom_control");
      add("/sys/fs/cgroup/memory/memory.oom_control");
    }
  }
  candidates.push_back({"/proc/vmstat", "machine"});
  std::erase_if(candidates, [](const oom_counter& x) { return !x.read(); });
  return candidates;
}

struct output_pipe {
  unique_fd fd;
  output_stream stream = output_stream::out;
  std::string line;
};

struct child {
  pid_t pid = 0;
  unique_fd pidfd;
  std::array<output_pipe, 2> outputs;
  std::deque<std::string> last_lines;
  /// One for each counter.
  std::vector<std::uint64_t> oom_kills_before;
  bool kill_requested = false;
  /// Set once it is dead; it stays a zombie, so that its pid stays its own, until its output is drained.
  std::optional<exit_report> report;
  clock::time_point drained_by;

  [[nodiscard]] bool is_drained() const {
    return std::ranges::all_of(outputs, [](const output_pipe& x) { return !x.fd; });
  }
};

/// What an epoll event is about. Pid 0 is the wake-up call.
struct event_source {
  enum kind : std::uint64_t { process, out, err };

  pid_t pid = 0;
  kind what = process;

  [[nodiscard]] std::uint64_t packed() const { return static_cast<std::uint64_t>(pid) << 2 | what; }
  [[nodiscard]] static event_source unpacked(std::uint64_t x) {
    return {static_cast<pid_t>(x >> 2), static_cast<kind>(x & 3)};
  }
};

int pidfd_send_signal(int pidfd, int signal) {
  return static_cast<int>(syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0));
}

/// `P_PIDFD` of <sys/wait.h>, which older C libraries lack.
constexpr auto wait_by_pidfd = static_cast<idtype_t>(3);

/// The status of a dead child; nothing while it lives. Leaves it a zombie.
std::optional<exit_report> look_at(const child& x) {
  siginfo_t info{};
  exit_report result;
  result.pid = x.pid;
  if (waitid(wait_by_pidfd, static_cast<id_t>(x.pidfd.get()), &info, WEXITED | WNOHANG | WNOWAIT) != 0)
    return result;
  if (info.si_pid == 0)
    return std::nullopt;
  if (info.si_code == CLD_EXITED)
    result.exit_code = info.si_status;
  else
    result.signal = info.si_status;
  result.core_dumped = info.si_code == CLD_DUMPED;
  return result;
}

void reap(int pidfd) {
  siginfo_t info{};
  while (waitid(wait_by_pidfd, static_cast<id_t>(pidfd), &info, WEXITED) != 0 && errno == EINTR)
    ;
}

std::string signal_name(int signal) {
  const auto* name = sigabbrev_np(signal);
  std::string result = "SIG";
  result += name == nullptr ? "?" : name;
  return result;
}

} // namespace

std::string exit_report::describe() const {
  std::string result = "ended, but its status was taken by another waiter in this program";
  if (exit_code)
    result = "exit code " + std::to_string(*exit_code);
  else if (signal)
    result = "killed by signal " + std::to_string(*signal) + " (" + signal_name(*signal) + ")";
  if (core_dumped)
    result += ", core dumped";
  if (!evidence.empty())
    result += "; " + evidence;
  return result;
}

class process_supervisor::impl {
 public:
  explicit impl(process_callbacks callbacks) : callbacks_(std::move(callbacks)), oom_counters_(find_oom_counters()) {}
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl();

  [[nodiscard]] expected<void> open();
  [[nodiscard]] expected<pid_t> start(const process_spec& spec);
  bool kill(pid_t pid, int signal);
  void kill_all();
  [[nodiscard]] std::vector<pid_t> running() const;

 private:
  struct start_request {
    const process_spec& spec;
    std::promise<expected<pid_t>> answer;
  };

  // All below run on the supervisor's thread.
  void run();
  [[nodiscard]] bool has_work();
  [[nodiscard]] int wait_milliseconds() const;
  void handle(event_source source);
  void serve_requests();
  void finish_due();

  [[nodiscard]] expected<pid_t> launch(const process_spec& spec);
  [[nodiscard]] expected<child> execute_child(const process_spec& spec);
  [[nodiscard]] expected<void> watch(const child& x);
  [[nodiscard]] bool add_to_epoll(int fd, event_source source);

  void note_end(child& x);
  void drain(child& x, output_pipe& output);
  void accept(child& x, output_pipe& output, std::string_view bytes);
  void emit(child& x, output_pipe& output);
  void finish(pid_t pid);
  [[nodiscard]] std::string oom_evidence(const child& x) const;

  void wake();
  static void kill_group(child& x);

  const process_callbacks callbacks_;
  const std::vector<oom_counter> oom_counters_;
  unique_fd epoll_;
  unique_fd wake_;
  unique_fd null_;
  pipe_ends lifeline_;
  std::atomic<bool> closing_ = false;
  clock::time_point give_up_at_ = clock::time_point::max();

  /// Guards what follows. The map is changed on the supervisor's thread alone, which therefore reads it freely.
  mutable std::mutex mutex_;
  std::map<pid_t, child> children_;
  std::vector<start_request*> requests_;

  std::thread thread_;
};

process_supervisor::impl::~impl() {
  if (!thread_.joinable())
    return;
  closing_ = true;
  wake();
  thread_.join();
}

expected<void> process_supervisor::impl::open() {
  constexpr auto what = "cannot start the thread that watches child processes";
  epoll_ = unique_fd{epoll_create1(EPOLL_CLOEXEC)};
  if (!epoll_)
    return fail(system_error(what));
  wake_ = unique_fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  if (!wake_ || !add_to_epoll(wake_.get(), {}))
    return fail(system_error(what));
  auto null = kept(unique_fd{::open("/dev/null", O_RDONLY | O_CLOEXEC)}, "/dev/null");
  if (!null)
    return fail(std::move(null.error()));
  auto lifeline = make_pipe();
  if (!lifeline)
    return fail(std::move(lifeline.error()));
  null_ = std::move(*null);
  lifeline_ = std::move(*lifeline);
  signals_blocked blocked;
  try {
    thread_ = std::thread{[this] { run(); }};
  } catch (const std::system_error& reason) {
    return fail(errc::io_error, std::string{what} + ": " + reason.what() + "; raise the limit of threads (ulimit -u)");
  }
  pthread_setname_np(thread_.native_handle(), "supervisor");
  return {};
}

expected<pid_t> process_supervisor::impl::start(const process_spec& spec) {
  if (std::this_thread::get_id() == thread_.get_id())
    return launch(spec);
  start_request request{spec, {}};
  auto answer = request.answer.get_future();
  {
    std::lock_guard guard{mutex_};
    requests_.push_back(&request);
  }
  wake();
  return answer.get();
}

bool process_supervisor::impl::kill(pid_t pid, int signal) {
  std::lock_guard guard{mutex_};
  auto found = children_.find(pid);
  if (found == children_.end() || found->second.report)
    return false;
  if (signal == SIGKILL)
    kill_group(found->second);
  return pidfd_send_signal(found->second.pidfd.get(), signal) == 0;
}

void process_supervisor::impl::kill_all() {
  std::lock_guard guard{mutex_};
  for (auto& [pid, x] : children_)
    if (!x.report)
      kill_group(x);
}

std::vector<pid_t> process_supervisor::impl::running() const {
  std::lock_guard guard{mutex_};
  std::vector<pid_t> result;
  for (const auto& [pid, x] : children_)
    result.push_back(pid);
  return result;
}

/// Each child leads a group of its own, whose number cannot be given away before the child is reaped.
void process_supervisor::impl::kill_group(child& x) {
  x.kill_requested = true;
  ::kill(-x.pid, SIGKILL);
  pidfd_send_signal(x.pidfd.get(), SIGKILL);
}

void process_supervisor::impl::wake() {
  std::uint64_t one = 1;
  // It can only fail when a wake-up is pending already.
  [[maybe_unused]] auto n = write(wake_.get(), &one, sizeof(one));
}

void process_supervisor::impl::run() {
  std::array<epoll_event, 64> events{};
  while (has_work()) {
    auto n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_milliseconds());
    for (const auto& event : std::span{events}.first(static_cast<std::size_t>(std::max(n, 0))))
      handle(event_source::unpacked(event.data.u64));
    serve_requests();
    finish_due();
  }
}

bool process_supervisor::impl::has_work() {
  if (!closing_)
    return true;
  kill_all();
  if (give_up_at_ == clock::time_point::max())
    give_up_at_ = clock::now() + reap_window;
  return !children_.empty() && clock::now() < give_up_at_;
}

int process_supervisor::impl::wait_milliseconds() const {
  auto deadline = give_up_at_;
  for (const auto& [pid, x] : children_)
    if (x.report)
      deadline = std::min(deadline, x.drained_by);
  if (deadline == clock::time_point::max())
    return -1;
  auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - clock::now());
  return static_cast<int>(std::max(left, std::chrono::milliseconds::zero()).count());
}

void process_supervisor::impl::handle(event_source source) {
  if (source.pid == 0) {
    std::uint64_t count = 0;
    [[maybe_unused]] auto n = read(wake_.get(), &count, sizeof(count));
    return;
  }
  auto found = children_.find(source.pid);
  if (found == children_.end())
    return;
  auto& x = found->second;
  switch (source.what) {
  case event_source::process:
    note_end(x);
    break;
  case event_source::out:
    drain(x, x.outputs[0]);
    break;
  case event_source::err:
    drain(x, x.outputs[1]);
    break;
  }
}

void process_supervisor::impl::serve_requests() {
  std::vector<start_request*> requests;
  {
    std::lock_guard guard{mutex_};
    requests.swap(requests_);
  }
  for (auto* request : requests)
    request->answer.set_value(launch(request->spec));
}

void process_supervisor::impl::finish_due() {
  std::vector<pid_t> due;
  auto now = clock::now();
  for (const auto& [pid, x] : children_)
    if (x.report && (x.is_drained() || x.drained_by <= now || closing_))
      due.push_back(pid);
  for (auto pid : due)
    finish(pid);
}

expected<pid_t> process_supervisor::impl::launch(const process_spec& spec) {
  if (closing_)
    return fail(errc::stopped, "cannot start " + spec.program + ": this process is about to end");
  if (spec.argv.empty() || spec.program_fd < 0)
    return fail(errc::invalid_argument,
                "cannot start " + spec.program + ": it takes an open program and its name as argv[0]");
  auto made = execute_child(spec);
  if (!made)
    return fail(std::move(made.error()));
  if (auto watched = watch(*made); !watched) {
    kill_group(*made);
    reap(made->pidfd.get());
    return fail(std::move(watched.error()));
  }
  auto pid = made->pid;
  std::lock_guard guard{mutex_};
  children_.insert_or_assign(pid, std::move(*made));
  return pid;
}

expected<child> process_supervisor::impl::execute_child(const process_spec& spec) {
  auto out = make_output_pipe();
  if (!out)
    return fail(std::move(out.error()));
  auto err = make_output_pipe();
  if (!err)
    return fail(std::move(err.error()));
  auto bootstrap = make_bootstrap(spec.bootstrap);
  if (!bootstrap)
    return fail(std::move(bootstrap.error()));
  unique_fd program{fcntl(spec.program_fd, F_DUPFD_CLOEXEC, lowest_kept_fd)};
  unique_fd socket;
  if (spec.descriptor_socket >= 0)
    socket.reset(fcntl(spec.descriptor_socket, F_DUPFD_CLOEXEC, lowest_kept_fd));
  child_stack stack;
  if (!program || (spec.descriptor_socket >= 0 && !socket) || !stack)
    return fail(system_error("cannot start " + spec.program));

  auto argv = pointers(spec.argv);
  auto env = pointers(spec.env);
  launch_plan plan{
      .parent = getpid(),
      .fds = {null_.get(), out->write.get(), err->write.get(), bootstrap->get(), lifeline_.read.get(), socket.get()},
      .program_fd = program.get(),
      .fd_limit = fd_limit(),
      .directory = spec.directory.empty() ? nullptr : spec.directory.c_str(),
      .argv = argv.data(),
      .env = env.data(),
      .failure = {}};
  child result;
  for (const auto& counter : oom_counters_)
    result.oom_kills_before.push_back(counter.read().value_or(0));
  // Shares our memory instead of copying page tables: a driver may have gigabytes mapped. We stand still until the
  // child executes its program or ends; this thread has all signals blocked, so no handler runs on the shared memory.
  int pidfd = -1;
  result.pid = __clone(&child_main, stack.top(), CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &plan, &pidfd);
  if (result.pid < 0) {
    auto reason = system_error("cannot start " + spec.program);
    reason.message += "; check the limits of processes and memory on this host (ulimit -u, pids.max)";
    return fail(std::move(reason));
  }
  result.pidfd = unique_fd{pidfd};
  if (plan.failure.step != nullptr) {
    reap(pidfd);
    return fail(launch_error(spec, plan.failure));
  }
  result.outputs[0] = {std::move(out->read), output_stream::out, {}};
  result.outputs[1] = {std::move(err->read), output_stream::err, {}};
  return result;
}

expected<void> process_supervisor::impl::watch(const child& x) {
  if (add_to_epoll(x.pidfd.get(), {x.pid, event_source::process}) &&
      add_to_epoll(x.outputs[0].fd.get(), {x.pid, event_source::out}) &&
      add_to_epoll(x.outputs[1].fd.get(), {x.pid, event_source::err}))
    return {};
  return fail(system_error("cannot watch the process " + std::to_string(x.pid)));
}

bool process_supervisor::impl::add_to_epoll(int fd, event_source source) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = source.packed();
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void process_supervisor::impl::note_end(child& x) {
  auto report = look_at(x);
  if (!report)
    return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, x.pidfd.get(), nullptr);
  // Without a status somebody else has reaped it, and its pid is not ours to signal or to keep.
  bool is_ours = report->exit_code || report->signal;
  auto evidence = report->signal == SIGKILL ? oom_evidence(x) : std::string{};
  {
    std::lock_guard guard{mutex_};
    if (!x.kill_requested)
      report->evidence = std::move(evidence);
    x.report = std::move(report);
  }
  if (is_ours)
    ::kill(-x.pid, SIGKILL);
  x.drained_by = is_ours ? clock::now() + drain_window : clock::time_point{};
  for (auto& output : x.outputs)
    drain(x, output);
}

/// Reads what one pipe can hold, so that a chatty child does not keep us from the others.
void process_supervisor::impl::drain(child& x, output_pipe& output) {
  if (!output.fd)
    return;
  std::array<char, pipe_bytes> buffer;
  auto n = read(output.fd.get(), buffer.data(), buffer.size());
  if (n > 0)
    return accept(x, output, {buffer.data(), static_cast<std::size_t>(n)});
  if (n < 0 && (errno == EAGAIN || errno == EINTR))
    return;
  output.fd.reset();
}

void process_supervisor::impl::accept(child& x, output_pipe& output, std::string_view bytes) {
  while (!bytes.empty()) {
    if (bytes.front() == '\n') {
      emit(x, output);
      bytes.remove_prefix(1);
      continue;
    }
    if (output.line.size() == max_line_bytes)
      emit(x, output);
    auto room = max_line_bytes - output.line.size();
    auto piece = bytes.substr(0, std::min(bytes.find('\n'), room));
    output.line += piece;
    bytes.remove_prefix(piece.size());
  }
}

void process_supervisor::impl::emit(child& x, output_pipe& output) {
  auto line = std::exchange(output.line, {});
  if (callbacks_.on_output && !closing_)
    callbacks_.on_output(x.pid, output.stream, line);
  x.last_lines.push_back(std::move(line));
  if (x.last_lines.size() > max_last_lines)
    x.last_lines.pop_front();
}

void process_supervisor::impl::finish(pid_t pid) {
  // Taken out before it is reaped: from then on the kernel may give its pid to the next child.
  auto node = [this, pid] {
    std::lock_guard guard{mutex_};
    return children_.extract(pid);
  }();
  if (node.empty())
    return;
  auto& x = node.mapped();
  for (auto& output : x.outputs) {
    drain(x, output);
    if (!output.line.empty())
      emit(x, output);
    output.fd.reset();
  }
  reap(x.pidfd.get());
  x.pidfd.reset();
  x.report->last_lines.assign(std::make_move_iterator(x.last_lines.begin()),
                              std::make_move_iterator(x.last_lines.end()));
  if (callbacks_.on_exit && !closing_)
    callbacks_.on_exit(*x.report);
}

std::string process_supervisor::impl::oom_evidence(const child& x) const {
  for (std::size_t i = 0; i < oom_counters_.size(); ++i) {
    auto before = x.oom_kills_before[i];
    auto now = oom_counters_[i].read().value_or(before);
    if (now > before)
      return "probably out of memory: the kernel killed " + std::to_string(now - before) + " of the " +
             oom_counters_[i].scope + "'s processes for want of memory meanwhile (oom_kill in " +
             oom_counters_[i].path + "); use fewer workers on this host, or give it more memory";
  }
  return {};
}

process_supervisor::process_supervisor(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
process_supervisor::process_supervisor(process_supervisor&&) noexcept = default;
process_supervisor& process_supervisor::operator=(process_supervisor&&) noexcept = default;
process_supervisor::~process_supervisor() = default;

expected<process_supervisor> process_supervisor::make(process_callbacks callbacks) {
  auto state = std::make_unique<impl>(std::move(callbacks));
  if (auto opened = state->open(); !opened)
    return fail(std::move(opened.error()));
  return process_supervisor{std::move(state)};
}

expected<pid_t> process_supervisor::start(const process_spec& spec) {
  return impl_->start(spec);
}

bool process_supervisor::kill(pid_t pid, int signal) {
  return impl_->kill(pid, signal);
}

void process_supervisor::kill_all() {
  impl_->kill_all();
}

std::vector<pid_t> process_supervisor::running() const {
  return impl_->running();
}

void watch_lifeline(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  signals_blocked blocked;
  std::thread watcher{[fd] {
    char byte = 0;
    for (;;) {
      auto n = read(fd, &byte, 1);
      if (n == 0 || (n < 0 && errno != EINTR))
        _exit(lifeline_exit_code);
    }
  }};
  pthread_setname_np(watcher.native_handle(), "lifeline");
  watcher.detach();
}

expected<std::string> read_bootstrap(int fd) {
  unique_fd owned{fd};
  constexpr auto what = "cannot read the bootstrap: this program is to be started by Troupe, not by hand";
  std::string result;
  std::string buffer(pipe_bytes, '\0');
  for (;;) {
    auto n = pread(fd, buffer.data(), buffer.size(), static_cast<off_t>(result.size()));
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      return fail(system_error(what));
    if (n == 0)
      return result;
    result.append(buffer, 0, static_cast<std::size_t>(n));
  }
}

} // namespace troupe::runtime
