#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

namespace troupe::xgboost {

/// Connects the workers of XGBoost 1.7's collective layer (rabit): assigns each its rank and its peers. Runs on a
/// thread of rank 0's process; it has a deadline, serves only workers that know the secret, and stops with this object.
class rabit_tracker {
 public:
  /// Listens on a free port of `host`, a name or address of this host. Fails with `errc::io_error`.
  [[nodiscard]] static expected<std::unique_ptr<rabit_tracker>>
  start(const std::string& host, std::uint32_t world_size, std::string secret, std::chrono::milliseconds deadline);

  ~rabit_tracker();
  rabit_tracker(const rabit_tracker&) = delete;
  rabit_tracker& operator=(const rabit_tracker&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

  /// Why connecting the workers failed; code `none` if it has not. Thread-safe.
  [[nodiscard]] error reason() const;

  /// The task id that a worker sends.
  [[nodiscard]] static std::string task_id(std::uint32_t rank, const std::string& secret);

 private:
  struct peer {
    collectives::unique_fd socket;
    std::string host;
    std::int32_t port = 0;
  };
  using time = std::chrono::steady_clock::time_point;

  rabit_tracker() = default;

  void run(const std::stop_token& stop, time deadline);
  [[nodiscard]] expected<void> bring_together(const std::stop_token& stop, time deadline);
  [[nodiscard]] expected<void> gather(const std::stop_token& stop, time deadline);
  /// Admits a worker that identifies itself; ignores any other connection.
  void admit(collectives::unique_fd socket, std::string host, time deadline);
  [[nodiscard]] expected<void> place(std::int32_t rank, time deadline);

  collectives::unique_fd listener_;
  collectives::unique_fd wake_;
  std::uint16_t port_ = 0;
  std::string secret_;
  std::vector<peer> peers_;
  mutable std::mutex mutex_;
  error reason_;
  std::jthread thread_;
};

} // namespace troupe::xgboost
