#pragma once

#include <caf/io/network/default_multiplexer.hpp>
#include <caf/io/network/event_handler.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <sys/timerfd.h>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

/// Calls `expired` in the multiplexer's thread.
class deadline_timer : public caf::io::network::event_handler {
 public:
  deadline_timer(caf::io::network::default_multiplexer& multiplexer, std::function<void()> expired)
      : caf::io::network::event_handler(multiplexer, ::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
        expired_(std::move(expired)) {}

  void start() { backend().add(caf::io::network::operation::read, fd(), this); }
  void stop() { backend().del(caf::io::network::operation::read, fd(), this); }

  void set(std::chrono::steady_clock::duration from_now) {
    auto rest = std::chrono::ceil<std::chrono::milliseconds>(std::max(from_now, std::chrono::steady_clock::duration{1}))
                    .count();
    auto time = itimerspec{{}, {rest / 1000, (rest % 1000) * 1'000'000}};
    ::timerfd_settime(fd(), 0, &time, nullptr);
  }

  void handle_event(caf::io::network::operation op) override {
    std::uint64_t times = 0;
    if (op == caf::io::network::operation::read && ::read(fd(), &times, sizeof(times)) == sizeof(times))
      expired_();
  }

  void removed_from_loop(caf::io::network::operation) override {}
  void graceful_shutdown() override {}

 private:
  std::function<void()> expired_;
};

} // namespace troupe::runtime
