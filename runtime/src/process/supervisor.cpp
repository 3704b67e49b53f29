#include "process/descriptor_packets.hpp"
#include "process/oom_counters.hpp"
#include "process/program_starters.hpp"
#include "process/signals_blocked.hpp"

#include <troupe/runtime/process.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <system_error>
#include <thread>
#include <tuple>
#include <unistd.h>

namespace troupe::runtime {

namespace {

using clock = std::chrono::steady_clock;

/// How long processes that a dead child left behind may hold its pipes open.
constexpr auto drain_window = std::chrono::milliseconds{100};

/// How long the destructor waits for children that the kernel cannot end, for example while a disk or device hangs.
constexpr auto reap_window = std::chrono::seconds{10};

/// The source of an epoll event. Pid 0 is the wake-up event.
struct event_source {
  enum kind : std::uint64_t { process, out, err, reuse };

  pid_t pid = 0;
  kind what = process;

  [[nodiscard]] std::uint64_t packed() const { return static_cast<std::uint64_t>(pid) << 2 | what; }
  [[nodiscard]] static event_source unpacked(std::uint64_t x) {
    return {static_cast<pid_t>(x >> 2), static_cast<kind>(x & 3)};
  }
};

} // namespace

class process_supervisor::impl {
 public:
  explicit impl(process_callbacks callbacks) : callbacks_(std::move(callbacks)) {}
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;
  ~impl();

  [[nodiscard]] expected<void> open();
  [[nodiscard]] expected<pid_t> start(const process_spec& spec);
  void start_soon(process_spec spec, std::function<void(expected<pid_t>)> done);
  [[nodiscard]] expected<void> reuse(pid_t pid, const std::string& bootstrap, int descriptor_socket);
  bool kill(pid_t pid, int signal);

 private:
  // All functions below run on the supervisor's thread.
  void run();
  [[nodiscard]] bool has_work();
  void kill_all();
  [[nodiscard]] int wait_milliseconds() const;
  void handle(event_source source);
  void note_start();
  void finish_due();

  /// From its start on, a child is watched.
  [[nodiscard]] expected<pid_t> adopt(expected<child> made);
  [[nodiscard]] expected<void> watch(const child& x);
  [[nodiscard]] bool add_to_epoll(int fd, event_source source);

  void note_end(child& x);
  void note_idle(child& x);
  void finish(pid_t pid);
  [[nodiscard]] output_pipe::line_handler line_handler_of(child& x);

  void wake();

  const process_callbacks callbacks_;
  const oom_counters oom_counters_;
  unique_fd epoll_;
  unique_fd wake_;
  std::optional<program_starters> starters_;
  std::atomic<bool> closing_ = false;
  clock::time_point give_up_at_ = clock::time_point::max();

  /// Guards the members below. Only the supervisor's thread changes the map, so that thread reads it without locking.
  mutable std::mutex mutex_;
  std::map<pid_t, child> children_;

  std::thread thread_;
};

process_supervisor::impl::~impl() {
  if (!thread_.joinable())
    return;
  starters_->stop();
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
  TROUPE_TRY(auto starters, program_starters::make([this] { wake(); }));
  starters_.emplace(std::move(starters));
  signals_blocked blocked;
  try {
    thread_ = std::thread{[this] { run(); }};
  } catch (const std::system_error& reason) {
    return fail(errc::io_error, fmt::format("{}: {}; raise the limit on threads (ulimit -u)", what, reason.what()));
  }
  pthread_setname_np(thread_.native_handle(), "supervisor");
  return {};
}

expected<pid_t> process_supervisor::impl::start(const process_spec& spec) {
  // In a callback, whose result cannot come from this thread later.
  if (std::this_thread::get_id() == thread_.get_id())
    return adopt(starters_->start(spec));
  std::promise<expected<pid_t>> promise;
  start_soon(spec, [&promise](expected<pid_t> pid) { promise.set_value(std::move(pid)); });
  return promise.get_future().get();
}

void process_supervisor::impl::start_soon(process_spec spec, std::function<void(expected<pid_t>)> done) {
  starters_->start_soon({std::move(spec), std::move(done)});
}

expected<void> process_supervisor::impl::reuse(pid_t pid, const std::string& bootstrap, int descriptor_socket) {
  TROUPE_TRY(const auto file, make_bootstrap(bootstrap));
  constexpr std::array next{std::byte{1}};
  std::lock_guard guard{mutex_};
  const auto found = children_.find(pid);
  if (found == children_.end() || found->second.report || !found->second.reuse_socket ||
      send_packet(found->second.reuse_socket.get(), next, std::array{file.get(), descriptor_socket}) !=
          send_outcome::sent)
    return fail(errc::worker_lost, fmt::format("process {} takes no other bootstrap: it is ending", pid));
  return {};
}

bool process_supervisor::impl::kill(pid_t pid, int signal) {
  std::lock_guard guard{mutex_};
  auto found = children_.find(pid);
  if (found == children_.end() || found->second.report)
    return false;
  if (signal == SIGKILL)
    found->second.kill_group();
  return found->second.send_signal(signal);
}

void process_supervisor::impl::kill_all() {
  std::lock_guard guard{mutex_};
  for (auto& [pid, x] : children_)
    if (!x.report)
      x.kill_group();
}

void process_supervisor::impl::wake() {
  std::uint64_t one = 1;
  // This fails only when a wake-up is already pending.
  [[maybe_unused]] auto n = write(wake_.get(), &one, sizeof(one));
}

void process_supervisor::impl::run() {
  std::array<epoll_event, 64> events{};
  while (has_work()) {
    auto n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_milliseconds());
    for (const auto& event : std::span{events}.first(static_cast<std::size_t>(std::max(n, 0))))
      handle(event_source::unpacked(event.data.u64));
    note_start();
    finish_due();
  }
}

bool process_supervisor::impl::has_work() {
  if (!closing_)
    return true;
  // Nobody hears of these.
  while (auto late = starters_->take())
    std::ignore = adopt(std::move(late->made));
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
    x.outputs[0].read(line_handler_of(x));
    break;
  case event_source::err:
    x.outputs[1].read(line_handler_of(x));
    break;
  case event_source::reuse:
    note_idle(x);
    break;
  }
}

/// Notes one start per call: output and ends of other children are handled in between.
void process_supervisor::impl::note_start() {
  auto next = starters_->take();
  if (!next)
    return;
  wake();
  next->asked.done(adopt(std::move(next->made)));
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

expected<pid_t> process_supervisor::impl::adopt(expected<child> made) {
  if (!made)
    return fail(std::move(made.error()));
  if (auto watched = watch(*made); !watched) {
    made->kill_group();
    made->reap();
    return fail(std::move(watched.error()));
  }
  auto pid = made->pid;
  std::lock_guard guard{mutex_};
  children_.insert_or_assign(pid, std::move(*made));
  return pid;
}

expected<void> process_supervisor::impl::watch(const child& x) {
  if (add_to_epoll(x.pidfd.get(), {x.pid, event_source::process}) &&
      add_to_epoll(x.outputs[0].fd(), {x.pid, event_source::out}) &&
      add_to_epoll(x.outputs[1].fd(), {x.pid, event_source::err}) &&
      (!x.reuse_socket || add_to_epoll(x.reuse_socket.get(), {x.pid, event_source::reuse})))
    return {};
  return fail(system_error(fmt::format("cannot watch process {}", x.pid)));
}

bool process_supervisor::impl::add_to_epoll(int fd, event_source source) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = source.packed();
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void process_supervisor::impl::note_end(child& x) {
  auto report = x.check_exit();
  if (!report)
    return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, x.pidfd.get(), nullptr);
  // Without a status the child was reaped elsewhere, and its pid may already belong to another process.
  bool is_ours = report->exit_code || report->signal;
  auto evidence = report->signal == SIGKILL ? oom_counters_.evidence(x.oom_kills_before) : std::string{};
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
    output.read(line_handler_of(x));
}

void process_supervisor::impl::note_idle(child& x) {
  const auto received = receive_packet(x.reuse_socket.get());
  if (received.what == received_packet::outcome::none)
    return;
  if (received.what != received_packet::outcome::packet) {
    std::lock_guard guard{mutex_};
    x.reuse_socket.reset();
    return;
  }
  // It had written all of this before.
  for (auto& output : x.outputs)
    output.read(line_handler_of(x));
  x.last_lines.clear();
  if (callbacks_.on_idle && !closing_)
    callbacks_.on_idle(x.pid);
}

void process_supervisor::impl::finish(pid_t pid) {
  // Removed before it is reaped, because afterwards the kernel may give its pid to the next child.
  auto node = [this, pid] {
    std::lock_guard guard{mutex_};
    return children_.extract(pid);
  }();
  if (node.empty())
    return;
  auto& x = node.mapped();
  for (auto& output : x.outputs)
    output.finish(line_handler_of(x));
  x.reap();
  x.report->last_lines.assign(std::make_move_iterator(x.last_lines.begin()),
                              std::make_move_iterator(x.last_lines.end()));
  if (callbacks_.on_exit && !closing_)
    callbacks_.on_exit(*x.report);
}

/// Hands each line to the owner, and keeps the last ones for the exit report.
output_pipe::line_handler process_supervisor::impl::line_handler_of(child& x) {
  return [this, &x](output_stream stream, std::string line) {
    if (callbacks_.on_output && !closing_)
      callbacks_.on_output(x.pid, stream, line);
    x.last_lines.push_back(std::move(line));
    if (x.last_lines.size() > max_last_lines)
      x.last_lines.pop_front();
  };
}

process_supervisor::process_supervisor(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
process_supervisor::process_supervisor(process_supervisor&&) noexcept = default;
process_supervisor& process_supervisor::operator=(process_supervisor&&) noexcept = default;
process_supervisor::~process_supervisor() = default;

expected<process_supervisor> process_supervisor::make(process_callbacks callbacks) {
  auto state = std::make_unique<impl>(std::move(callbacks));
  TROUPE_TRY(state->open());
  return process_supervisor{std::move(state)};
}

expected<pid_t> process_supervisor::start(const process_spec& spec) {
  return impl_->start(spec);
}

void process_supervisor::start_soon(process_spec spec, std::function<void(expected<pid_t>)> done) {
  impl_->start_soon(std::move(spec), std::move(done));
}

expected<void> process_supervisor::reuse(pid_t pid, const std::string& bootstrap, int descriptor_socket) {
  return impl_->reuse(pid, bootstrap, descriptor_socket);
}

bool process_supervisor::kill(pid_t pid, int signal) {
  return impl_->kill(pid, signal);
}

} // namespace troupe::runtime
