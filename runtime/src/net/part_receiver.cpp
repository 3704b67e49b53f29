#include "net/listening.hpp"
#include "net/part_session.hpp"
#include "net/part_stream.hpp"

#include <fmt/format.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <list>
#include <mutex>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <system_error>
#include <thread>

namespace troupe::runtime {

namespace {

using namespace std::chrono_literals;
using collectives::unique_fd;

/// For a worker's TLS handshake.
constexpr auto accept_limit = 10s;

/// Accepts connections on one thread, and serves each on a thread of its own.
class receiver : public actors::part_receiver {
 public:
  receiver(part_stream_secret secret, std::filesystem::path checkpoints, unique_fd socket)
      : secret_(std::move(secret)),
        checkpoints_(std::move(checkpoints)),
        socket_(std::move(socket)),
        port_(port_of(socket_.get())) {
    acceptor_ = std::thread{[this] { accept(); }};
  }

  ~receiver() override {
    stop_.request_stop();
    acceptor_.join();
    for (auto& each : sessions_)
      each.thread.join();
  }

  std::string address_towards(const std::string& host) const override {
    auto mine = local_address_towards(host);
    return mine.empty() ? std::string{} : to_string(endpoint{mine, port_});
  }

  void lend(const std::filesystem::path& checkpoint) override {
    auto opened = serialization::checkpoint::open(checkpoint);
    auto lock = std::lock_guard{mutex_};
    lent_ = opened ? std::make_shared<const serialization::checkpoint>(std::move(*opened)) : nullptr;
  }

 private:
  struct session {
    std::thread thread;
    std::atomic<bool> over{false};
  };

  void accept() {
    while (!stop_.stop_requested()) {
      auto what = pollfd{socket_.get(), POLLIN, 0};
      auto ready = ::poll(&what, 1, 100) > 0;
      std::erase_if(sessions_, [](session& x) {
        // Read once, since it may become true between two reads.
        const auto over = x.over.load();
        if (over)
          x.thread.join();
        return over;
      });
      if (!ready)
        continue;
      auto peer = unique_fd{::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)};
      if (!peer) {
        // Out of descriptors, and the socket stays ready: do not spin.
        std::this_thread::sleep_for(std::chrono::milliseconds{100});
        continue;
      }
      auto& next = sessions_.emplace_back();
      try {
        next.thread = std::thread{[this, &next, peer = std::move(peer)]() mutable {
          serve(std::move(peer));
          next.over = true;
        }};
      } catch (const std::system_error&) {
        // Out of threads. The worker finds its connection closed and tries again.
        sessions_.pop_back();
      }
    }
  }

  /// No data from a peer may end the driver.
  void serve(unique_fd peer) {
    try {
      serve_or_throw(std::move(peer));
    } catch (const std::exception&) {
      // The connection has been closed.
    }
  }

  void serve_or_throw(unique_fd peer) {
    // As low as the writing threads of workers, so that training goes first.
    ::setpriority(PRIO_PROCESS, 0, 10);
    auto stream = secure_stream::accept(std::move(peer), secret_.key(), accept_limit, stop_.get_token());
    if (!stream)
      return;
    part_session{std::move(*stream), secret_, checkpoints_,
                 [this] {
                   auto lock = std::lock_guard{mutex_};
                   return lent_;
                 }}
        .run();
  }

  part_stream_secret secret_;
  std::filesystem::path checkpoints_;
  unique_fd socket_;
  std::uint16_t port_;
  std::stop_source stop_;
  std::mutex mutex_;
  std::shared_ptr<const serialization::checkpoint> lent_;
  /// Only the acceptor's thread uses it while that thread runs.
  std::list<session> sessions_;
  std::thread acceptor_;
};

} // namespace

expected<std::unique_ptr<actors::part_receiver>> open_part_receiver(part_stream_secret secret,
                                                                    std::filesystem::path checkpoints, bool loopback) {
  auto socket = listen_on_any_port(loopback);
  if (!socket)
    return fail(errc::unreachable, fmt::format("cannot listen for parts of checkpoints: {}", std::strerror(errno)));
  return std::make_unique<receiver>(std::move(secret), std::move(checkpoints), std::move(socket));
}

} // namespace troupe::runtime
