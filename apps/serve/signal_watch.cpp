#include <serve/signal_watch.hpp>

#include <troupe/error.hpp>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <utility>

namespace serve {

namespace {

sigset_t watched_signals() {
  sigset_t result;
  ::sigemptyset(&result);
  for (auto each : {SIGHUP, SIGINT, SIGTERM})
    ::sigaddset(&result, each);
  return result;
}

} // namespace

signal_watch::signal_watch(signal_reactions reactions)
    : reactions_(std::move(reactions)), end_event_(::eventfd(0, EFD_CLOEXEC)) {
  const auto watched = watched_signals();
  ::pthread_sigmask(SIG_BLOCK, &watched, nullptr);
  signals_ = ::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK);
  if (end_event_ < 0 || signals_ < 0)
    throw troupe::exception{troupe::system_error("signals cannot be received")};
  thread_ = std::thread{[this] { run(); }};
}

signal_watch::~signal_watch() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(end_event_, &one, sizeof one);
  wait();
  ::close(end_event_);
  ::close(signals_);
}

void signal_watch::wait() {
  if (thread_.joinable())
    thread_.join();
}

void signal_watch::run() {
  for (;;) {
    std::array<pollfd, 2> events{{{signals_, POLLIN, 0}, {end_event_, POLLIN, 0}}};
    if (::poll(events.data(), events.size(), -1) < 0 && errno != EINTR)
      return;
    signalfd_siginfo received{};
    if (::read(signals_, &received, sizeof received) != sizeof received) {
      if (events[1].revents != 0)
        return;
      continue;
    }
    if (received.ssi_signo == SIGHUP) {
      reactions_.reload();
      continue;
    }
    const auto watched = watched_signals();
    ::pthread_sigmask(SIG_UNBLOCK, &watched, nullptr);
    reactions_.stop(static_cast<int>(received.ssi_signo));
    return;
  }
}

} // namespace serve
