#include <serve/signal_watch.hpp>

#include <troupe/error.hpp>

#include <array>
#include <cerrno>
#include <csignal>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

namespace serve {

namespace {

constexpr std::array watched{SIGHUP, SIGINT, SIGTERM};

/// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t wake_fd = -1;

void on_signal(int signal) {
  const auto error = errno;
  const auto byte = static_cast<char>(signal);
  // A full pipe has enough of them.
  [[maybe_unused]] const auto written = ::write(wake_fd, &byte, 1);
  errno = error;
}

void handle_by(void (*handler)(int)) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const auto each : watched)
    ::sigaction(each, &action, nullptr);
}

} // namespace

signal_watch::signal_watch(signal_reactions reactions) : reactions_(std::move(reactions)) {
  std::array<int, 2> ends{-1, -1};
  const auto is_open = ::pipe2(ends.data(), O_CLOEXEC) == 0;
  from_.reset(ends[0]);
  to_.reset(ends[1]);
  if (!is_open || ::fcntl(to_.get(), F_SETFL, O_NONBLOCK) != 0)
    throw troupe::exception{troupe::system_error("signals cannot be received")};
  wake_fd = to_.get();
  handle_by(on_signal);
  thread_ = std::thread{[this] { run(); }};
}

signal_watch::~signal_watch() {
  handle_by(SIG_DFL);
  wake_fd = -1;
  to_.reset();
  wait();
}

void signal_watch::wait() {
  if (thread_.joinable())
    thread_.join();
}

void signal_watch::run() {
  for (char signal = 0; ::read(from_.get(), &signal, 1) == 1;) {
    if (signal == SIGHUP) {
      reactions_.reload();
      continue;
    }
    // The second one ends the process.
    handle_by(SIG_DFL);
    reactions_.stop(signal);
    return;
  }
}

} // namespace serve
