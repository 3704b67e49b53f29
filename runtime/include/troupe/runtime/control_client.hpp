#pragma once

#include <troupe/actors/decisions/control_requests.hpp>
#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/runtime/found_run.hpp>

#include <chrono>
#include <deque>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <variant>

namespace troupe::runtime {

/// A connection to the driver of a run on this machine. Used by one thread.
class control_client {
 public:
  using json = nlohmann::ordered_json;

  /// How long a driver may take to answer: longer than it waits for its trainer.
  static constexpr auto answer_limit = std::chrono::seconds{35};

  explicit control_client(collectives::unique_fd stream) : stream_(std::move(stream)) {}

  /// The answer's status. Fails with the driver's refusal, or with `errc::unreachable` if it ends or stays silent.
  [[nodiscard]] expected<json> ask(const actors::control_request& request,
                                   std::chrono::milliseconds limit = answer_limit);

  /// The next event, after a `watch_request`; nothing after `limit`. Fails with `errc::unreachable` at the end of the
  /// connection.
  [[nodiscard]] expected<std::optional<json>> next_event(std::chrono::milliseconds limit);

 private:
  [[nodiscard]] expected<std::optional<json>> read_line(std::chrono::steady_clock::time_point until);

  collectives::unique_fd stream_;
  std::string in_;
  std::deque<json> events_;
};

/// Connects to the driver of a run. One that is just beginning or being replaced gets two seconds to listen.
[[nodiscard]] std::variant<control_client, absent_driver> find_driver(const std::filesystem::path& run);

} // namespace troupe::runtime
