#include "monitoring/http_server.hpp"

#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;

constexpr auto patience = 2s;
constexpr std::size_t most_threads = 4;
/// Later connections wait in the kernel's queue, and are refused beyond that.
constexpr std::size_t most_waiting = 16;

/// A few threads. The one that accepts connections waits while too many wait for these.
class bounded_queue : public httplib::TaskQueue {
 public:
  bounded_queue() {
    for (std::size_t i = 0; i < most_threads; ++i)
      threads_.emplace_back([this] { work(); });
  }

  void enqueue(std::function<void()> task) override {
    auto lock = std::unique_lock{mutex_};
    changed_.wait(lock, [this] { return tasks_.size() < most_waiting; });
    tasks_.push_back(std::move(task));
    changed_.notify_all();
  }

  void shutdown() override {
    {
      auto lock = std::lock_guard{mutex_};
      ends_ = true;
    }
    changed_.notify_all();
    for (auto& each : threads_)
      each.join();
  }

 private:
  void work() {
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

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

/// Unlike the library's own choice, which lets two processes have one port.
void set_options(socket_t socket) {
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

} // namespace

class http_server::impl {
 public:
  explicit impl(pages what) {
    server_.new_task_queue = [] { return new bounded_queue; }; // NOLINT: the library deletes it
    server_.set_socket_options(set_options);
    server_.set_tcp_nodelay(true);
    server_.set_keep_alive_max_count(1);
    // Also before a first request.
    server_.set_keep_alive_timeout(patience.count());
    server_.set_read_timeout(patience);
    server_.set_write_timeout(patience);
    server_.set_payload_max_length(0);
    for (auto& [path, page] : what)
      server_.Get(path, [page = std::move(page)](const httplib::Request&, httplib::Response& response) {
        auto answer = page();
        response.status = answer.status;
        response.set_content(std::move(answer.body), answer.content_type.c_str());
      });
  }

  ~impl() {
    server_.stop();
    if (thread_.joinable())
      thread_.join();
  }

  expected<void> listen(const endpoint& where) {
    errno = 0;
    address_ = where;
    if (where.port != 0 && !server_.bind_to_port(where.host, where.port))
      return fail(cannot_listen(where, errno));
    if (where.port == 0) {
      const auto port = server_.bind_to_any_port(where.host);
      if (port <= 0)
        return fail(cannot_listen(where, errno));
      address_.port = static_cast<std::uint16_t>(port);
    }
    thread_ = std::thread{[this] {
      server_.listen_after_bind();
      has_ended_ = true;
    }};
    // `stop` has no effect before that.
    while (!server_.is_running() && !has_ended_)
      std::this_thread::sleep_for(1ms);
    return {};
  }

  [[nodiscard]] const endpoint& address() const noexcept { return address_; }

 private:
  httplib::Server server_;
  endpoint address_;
  std::atomic<bool> has_ended_{false};
  std::thread thread_;
};

expected<std::unique_ptr<http_server>> http_server::open(const endpoint& where, pages what) {
  auto state = std::make_unique<impl>(std::move(what));
  TROUPE_TRY(state->listen(where));
  return std::unique_ptr<http_server>{new http_server{std::move(state)}};
}

http_server::http_server(std::unique_ptr<impl> state) : impl_(std::move(state)) {}
http_server::~http_server() = default;

const endpoint& http_server::address() const noexcept {
  return impl_->address();
}

} // namespace troupe::runtime
