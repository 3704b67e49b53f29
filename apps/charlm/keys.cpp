#include <charlm/keys.hpp>

#include <troupe/runtime/node_host.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <optional>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

namespace charlm {

/// Sets the terminal to deliver keys one by one without echo. Ctrl-C keeps its meaning.
class run_keys::raw_terminal {
 public:
  raw_terminal() {
    termios now{};
    if (::isatty(STDIN_FILENO) == 0 || ::tcgetattr(STDIN_FILENO, &now) != 0)
      return;
    before_ = now;
    now.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    ::tcsetattr(STDIN_FILENO, TCSANOW, &now);
  }
  ~raw_terminal() {
    if (before_)
      ::tcsetattr(STDIN_FILENO, TCSANOW, &*before_);
  }
  raw_terminal(const raw_terminal&) = delete;
  raw_terminal& operator=(const raw_terminal&) = delete;

 private:
  std::optional<termios> before_;
};

run_keys::run_keys(troupe::trainer& trainer, std::uint64_t seed, std::uint32_t most_workers,
                   std::function<void(const std::string&)> say)
    : trainer_(trainer), say_(std::move(say)), random_(seed), most_(most_workers) {
  thread_ = std::thread{[this] { loop(); }};
}

run_keys::~run_keys() {
  stop_ = true;
  thread_.join();
}

void run_keys::set_members(std::vector<troupe::worker_info> members) {
  auto lock = std::lock_guard{mutex_};
  members_ = std::move(members);
  wanted_ = std::max(wanted_, static_cast<std::uint32_t>(members_.size()));
}

void run_keys::loop() {
  auto terminal = raw_terminal{};
  say_(help);
  while (!stop_) {
    auto input = pollfd{STDIN_FILENO, POLLIN, 0};
    if (::poll(&input, 1, 50) <= 0)
      continue;
    char key = 0;
    if (::read(STDIN_FILENO, &key, 1) <= 0)
      return;
    press(key);
  }
}

void run_keys::press(char key) {
  switch (key) {
  case 'k':
    return hit(SIGKILL, "killed");
  case 'f':
    return hit(SIGSTOP, "frozen");
  case '+':
    return resize(1);
  case '-':
    return resize(-1);
  case 'p':
    paused_ = !paused_;
    say_(paused_ ? "pausing the run; p resumes it" : "resuming the run");
    return paused_ ? trainer_.pause() : trainer_.resume();
  case 'c':
    trainer_.save_checkpoint();
    return;
  case 'q':
    say_("stopping after this step");
    return trainer_.stop();
  case '?':
    return say_(help);
  default:
    return;
  }
}

void run_keys::hit(int signal, const char* what) {
  auto lock = std::lock_guard{mutex_};
  auto here = troupe::runtime::local_host_name();
  std::vector<troupe::worker_info> local;
  std::ranges::copy_if(members_, std::back_inserter(local),
                       [&](const auto& x) { return x.host == here && x.pid != 0; });
  if (local.empty())
    return say_("no worker of this run is on this host");
  const auto& victim = local[random_() % local.size()];
  if (::kill(static_cast<pid_t>(victim.pid), signal) == 0)
    say_(fmt::format("worker {} (rank {}, process {}) is {}", victim.worker, victim.rank, victim.pid, what));
  // Do not choose it again before the run has dropped it.
  std::erase_if(members_, [&](const auto& x) { return x.worker == victim.worker; });
}

void run_keys::resize(int change) {
  auto lock = std::lock_guard{mutex_};
  wanted_ = static_cast<std::uint32_t>(std::clamp(static_cast<int>(wanted_) + change, 1, static_cast<int>(most_)));
  say_(fmt::format("resizing to {} {}", wanted_, wanted_ == 1 ? "worker" : "workers"));
  trainer_.resize(wanted_);
}

} // namespace charlm
