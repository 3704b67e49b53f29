#pragma once

#include "library.hpp"
#include "library_tracker.hpp"
#include "rabit_tracker.hpp"
#include "settings.hpp"

#include <troupe/error.hpp>
#include <troupe/train_context.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

namespace troupe::xgboost {

/// rabit sends clear text. Fails with `errc::invalid_argument` if that would leave this machine, and nobody has said
/// that the network is private. `host`: where the workers find rank 0; loopback if all are on one node. Pure.
[[nodiscard]] expected<void> check_data_plane(const std::string& host, bool trusted_network);

/// Connects the workers of a run as a group of XGBoost: while connected, training in this thread is distributed. Every
/// rank creates one and leaves it.
class rabit_group {
 public:
  /// Returns once all workers are connected. A process that does not connect within the deadline exits, so that it can
  /// be replaced: XGBoost itself would wait forever. So does one that is still connected two seconds after the run has
  /// lost a worker: XGBoost may wait for that worker until the deadline. Throws `exception` and `library_error`.
  rabit_group(train_context& ctx, library_ptr functions, const settings& how);

  /// Closes the connections, so that no peer waits for this rank.
  ~rabit_group();
  rabit_group(const rabit_group&) = delete;
  rabit_group& operator=(const rabit_group&) = delete;

  /// Closes the connections now. Does not throw. A process that does not get through within the deadline exits.
  void leave() noexcept;

 private:
  /// Starts the tracker of this version, and returns its port.
  [[nodiscard]] std::uint16_t start_tracker(const std::string& host, std::uint32_t world_size,
                                            const std::string& secret);
  void connect(const std::string& options);

  library_ptr library_;
  std::chrono::seconds deadline_;
  /// On rank 0, one of these.
  std::unique_ptr<rabit_tracker> tracker_;
  std::unique_ptr<library_tracker> library_tracker_;
  bool member_ = false;
  /// Ends the process if XGBoost does not notice that a worker is lost.
  std::jthread loss_watch_;
};

} // namespace troupe::xgboost
