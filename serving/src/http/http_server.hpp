#pragma once

#include "decisions/source_limit.hpp"
#include "http/connection.hpp"
#include "http/request_exchange.hpp"
#include "http/request_handler.hpp"
#include "http/transport.hpp"
#include "memory_budget.hpp"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace troupe::serving {

/// A descriptor that is closed with it.
class owned_descriptor {
 public:
  explicit owned_descriptor(int descriptor = -1) noexcept : descriptor_(descriptor) {}
  owned_descriptor(owned_descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  owned_descriptor& operator=(owned_descriptor&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~owned_descriptor();

  [[nodiscard]] int get() const noexcept { return descriptor_; }

 private:
  int descriptor_;
};

/// Listens, and serves each connection on a thread of its own. When all threads are taken, connections without a
/// request are closed for those that wait.
class http_server {
 public:
  /// `handler` outlives it.
  http_server(listen_config listen, limits_config limits, request_handler& handler);
  ~http_server();
  http_server(const http_server&) = delete;
  http_server& operator=(const http_server&) = delete;

  /// Opens the port; connections are accepted and wait. Fails as `server::start` does.
  [[nodiscard]] expected<void> open();

  /// Begins to serve. Fails with `errc::unsatisfiable` without a thread.
  [[nodiscard]] expected<void> run();

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }
  [[nodiscard]] bool is_encrypted() const noexcept { return !listen_.certificate.empty(); }
  [[nodiscard]] std::size_t connections() const;

  /// Accepts no more connections, answers all requests that have been received, and returns when no connection is left
  /// or `grace` is over; whether none is. Once, after `run`.
  [[nodiscard]] bool drain(std::chrono::milliseconds grace);

  /// After `drain`: ends the connections that are left. The handler must return from all calls.
  void close();

 private:
  struct accepted {
    int descriptor;
    std::string peer;
    /// What it counts for in `sources_`.
    std::string source;
  };

  void accept_connections();
  void accept_waiting();
  void take_in(accepted connection);
  [[nodiscard]] bool find_worker();
  void turn_away(int descriptor, std::string_view why);
  void work() noexcept;
  [[nodiscard]] std::optional<accepted> next_connection();
  /// Whether the connection left its place to one that waits.
  [[nodiscard]] bool serve(const accepted& connection);
  [[nodiscard]] bool leave_place();
  void update_crowd();

  listen_config listen_;
  limits_config limits_;
  exchange_context context_;
  std::optional<tls_context> tls_;
  memory_budget memory_;
  std::atomic<std::uint16_t> port_ = 0;
  owned_descriptor listening_;
  /// Readable once the server stops.
  owned_descriptor stop_event_;
  /// Readable while more connections wait than workers are free.
  owned_descriptor crowd_event_;
  std::atomic<bool> is_stopping_ = false;
  std::thread accepting_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  source_limit sources_;
  std::deque<accepted> waiting_;
  /// Workers that wait for a connection, or will without any client's doing.
  std::size_t free_workers_ = 0;
  std::vector<std::thread> workers_;
  bool is_crowded_ = false;
  /// Those that workers serve.
  std::set<int> open_;
};

} // namespace troupe::serving
