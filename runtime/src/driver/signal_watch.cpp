#include "driver/signal_watch.hpp"

#include <troupe/error.hpp>

#include <csignal>
#include <fcntl.h>
#include <thread>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

/// A signal handler can reach nothing but a global.
volatile std::sig_atomic_t wake_fd = -1;

void on_signal(int signal) {
  auto byte = static_cast<char>(signal);
  [[maybe_unused]] auto written = ::write(wake_fd, &byte, 1);
}

} // namespace

class signal_watch::impl {
 public:
  explicit impl(std::function<void(int, int)> react) : react_(std::move(react)) {
    if (::pipe2(pipe_, O_CLOEXEC) != 0)
      throw exception{system_error("pipe")};
    wake_fd = pipe_[1];
    struct sigaction action {};
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    ::sigaction(SIGINT, &action, &old_interrupt_);
    ::sigaction(SIGTERM, &action, &old_terminate_);
    thread_ = std::thread{[this] { loop(); }};
  }

  ~impl() {
    ::sigaction(SIGINT, &old_interrupt_, nullptr);
    ::sigaction(SIGTERM, &old_terminate_, nullptr);
    wake_fd = -1;
    ::close(pipe_[1]);
    thread_.join();
    ::close(pipe_[0]);
  }

 private:
  void loop() {
    auto count = 0;
    for (char signal = 0; ::read(pipe_[0], &signal, 1) == 1;)
      react_(signal, ++count);
  }

  std::function<void(int, int)> react_;
  int pipe_[2] = {-1, -1};
  struct sigaction old_interrupt_ {};
  struct sigaction old_terminate_ {};
  std::thread thread_;
};

signal_watch::signal_watch(std::function<void(int, int)> react) : impl_(std::make_unique<impl>(std::move(react))) {}
signal_watch::~signal_watch() = default;

} // namespace troupe::runtime
