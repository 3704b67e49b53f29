#pragma once

#include "library.hpp"

#include <chrono>
#include <cstdint>
#include <string>

namespace troupe::xgboost {

/// XGBoost's own tracker (2.1 and later), on a thread of its library in rank 0's process: assigns each worker its rank
/// and its peers. It serves any process that reaches its port.
class library_tracker {
 public:
  /// Listens on a free port of `host`, a name or address of this host. Throws `library_error`.
  library_tracker(library_ptr functions, const std::string& host, std::uint32_t world_size,
                  std::chrono::seconds deadline);

  /// Stops it. Workers must have left, or are disconnected.
  ~library_tracker();
  library_tracker(const library_tracker&) = delete;
  library_tracker& operator=(const library_tracker&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept { return port_; }

  /// The task id that a worker sends. XGBoost's ranks follow the order of these texts.
  [[nodiscard]] static std::string task_id(std::uint32_t rank);

 private:
  library_ptr library_;
  void* handle_ = nullptr;
  std::uint16_t port_ = 0;
};

} // namespace troupe::xgboost
