#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/control_client.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace troupe::runtime {

/// Connections to the drivers of runs on this machine, for clients on others. One that is not used for a minute ends.
/// Thread-safe; a call waits for the driver.
class run_sessions {
 public:
  /// Fails with why nobody answers for the run.
  [[nodiscard]] std::variant<std::uint64_t, absent_driver> open(const std::filesystem::path& run);

  /// The driver's answer to a line of its protocol, as a line. Fails with `errc::not_found` for a session that has
  /// ended, and as `control_client::ask` does where the driver does not answer.
  [[nodiscard]] expected<std::string> request(std::uint64_t session, std::string_view line);

  struct news {
    std::vector<std::string> lines;
    /// The driver has closed the connection.
    bool has_ended = false;
  };

  /// The events that have come since, after a request for them. Waits for a quarter of a second for the first.
  [[nodiscard]] expected<news> events(std::uint64_t session);

 private:
  struct connection {
    explicit connection(control_client client) : driver(std::move(client)) {}
    std::mutex mutex;
    control_client driver;
    std::chrono::steady_clock::time_point used = std::chrono::steady_clock::now();
  };

  [[nodiscard]] expected<std::shared_ptr<connection>> find(std::uint64_t session);

  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, std::shared_ptr<connection>> sessions_;
};

} // namespace troupe::runtime
