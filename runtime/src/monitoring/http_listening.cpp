#include "monitoring/http_listening.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <sys/socket.h>
#include <utility>

namespace troupe::runtime {

namespace {

/// Later connections wait in the kernel's queue, and are refused beyond that.
constexpr std::size_t most_waiting = 16;

} // namespace

bounded_queue::bounded_queue(std::size_t threads) {
  for (std::size_t i = 0; i < threads; ++i)
    threads_.emplace_back([this] { work(); });
}

bounded_queue::answer bounded_queue::enqueue(std::function<void()> task) {
  auto lock = std::unique_lock{mutex_};
  changed_.wait(lock, [this] { return tasks_.size() < most_waiting; });
  tasks_.push_back(std::move(task));
  changed_.notify_all();
  return static_cast<answer>(true);
}

void bounded_queue::shutdown() {
  {
    auto lock = std::lock_guard{mutex_};
    ends_ = true;
  }
  changed_.notify_all();
  for (auto& each : threads_)
    each.join();
}

void bounded_queue::work() {
  auto lock = std::unique_lock{mutex_};
  for (;;) {
    changed_.wait(lock, [this] { return ends_ || !tasks_.empty(); });
    if (tasks_.empty())
      return;
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    changed_.notify_all();
    lock.unlock();
    task();
    lock.lock();
  }
}

void set_listening_options(socket_t socket) {
  const auto on = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
}

error cannot_listen(const endpoint& where, int code) {
  const auto text = to_string(where);
  if (code == EADDRINUSE)
    return {errc::already_exists,
            fmt::format("{} is in use by another process: choose another port, or port 0 for any free one", text)};
  return {errc::invalid_argument, fmt::format("cannot listen on {}{}: choose an address of this host", text,
                                              code == 0 ? std::string{} : fmt::format(" ({})", std::strerror(code)))};
}

} // namespace troupe::runtime
