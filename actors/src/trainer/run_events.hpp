#pragma once

#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>

#include <cstddef>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <vector>

/// The lines of a run's events.jsonl, but for their times. Pure.
namespace troupe::actors {

/// The event for an observer's message; nothing if the message is not recorded.
[[nodiscard]] std::optional<nlohmann::ordered_json> event_of(const run_started& x);
[[nodiscard]] std::optional<nlohmann::ordered_json> event_of(const run_progress& x);
[[nodiscard]] std::optional<nlohmann::ordered_json> event_of(const checkpoint_saved& x);
[[nodiscard]] std::optional<nlohmann::ordered_json> event_of(const checkpoint_skipped& x);
[[nodiscard]] std::optional<nlohmann::ordered_json> event_of(const checkpoint_failed& x);
[[nodiscard]] std::optional<nlohmann::ordered_json> event_of(const generation_record& x);
[[nodiscard]] std::optional<nlohmann::ordered_json> event_of(const run_notice& x);

[[nodiscard]] nlohmann::ordered_json event_of(const pause_row& x, rank_id rank);
[[nodiscard]] nlohmann::ordered_json event_of(const not_finite_row& x, rank_id rank);
[[nodiscard]] nlohmann::ordered_json event_of(const failure_record& x);
/// The run's end.
[[nodiscard]] nlohmann::ordered_json event_of(const run_result& x);
/// From time to time: a run that is killed has no end.
[[nodiscard]] nlohmann::ordered_json event_of(const run_goodput& x);

/// Which of the failures that a run has had are not among its events yet.
class new_failures {
 public:
  /// The order of `all` may have changed since the last call: causes are put first.
  [[nodiscard]] std::vector<failure_record> take(const std::vector<failure_record>& all);

 private:
  std::map<worker_id, std::size_t> known_;
};

} // namespace troupe::actors
