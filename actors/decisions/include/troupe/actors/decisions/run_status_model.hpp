#pragma once

#include <troupe/actors/decisions/run_condition.hpp>
#include <troupe/result.hpp>

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

namespace troupe::actors {

/// "2026-11-24T10:37:12.250Z"
[[nodiscard]] std::string utc_text(std::chrono::system_clock::time_point when);

/// Who runs, and what does not change while it does.
struct run_identification {
  run_id run;
  std::string name;
  std::string path;
  std::string host;
  std::uint32_t pid = 0;
  std::chrono::system_clock::time_point started;
  /// When `run_config::time_limit` is over.
  std::optional<std::chrono::system_clock::time_point> ends_by;
};

/// The status of a run for people and scripts, folded from its events. A plain class; time is an argument.
class run_status_model {
 public:
  using time_point = std::chrono::system_clock::time_point;

  explicit run_status_model(run_identification who) : who_(std::move(who)), since_(who_.started) {}

  void on(const run_condition& condition, time_point now);
  void on(const run_progress& progress) { progress_ = progress; }
  void on(const checkpoint_saved& saved, time_point now);
  void on(const run_result& result, time_point now);

  [[nodiscard]] const run_condition& condition() const noexcept { return condition_; }
  /// As docs/watching.md describes it.
  [[nodiscard]] nlohmann::ordered_json status(time_point now) const;

 private:
  struct last_checkpoint {
    checkpoint_saved what;
    time_point when;
  };

  run_identification who_;
  run_condition condition_;
  /// When the run began to do what it does.
  time_point since_;
  std::optional<run_progress> progress_;
  std::optional<last_checkpoint> checkpoint_;
  std::optional<run_result> result_;
};

} // namespace troupe::actors
