#pragma once

#include "watching/bounded_curve.hpp"

#include <troupe/runtime/run_story.hpp>

#include <cstdint>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace troupe::runtime {

/// Rank 0's metrics as curves. A plain class.
class metric_story {
 public:
  void add(const nlohmann::json& row);

  /// "steps/s" first.
  [[nodiscard]] std::vector<named_curve> curves() const;

  static constexpr std::size_t most_metrics = 47;

 private:
  [[nodiscard]] named_curve speed() const;

  std::map<std::string, bounded_curve> metrics_;
  /// The run's time at each step.
  bounded_curve seconds_;
};

/// Where the time of each rank went. A plain class.
class time_story {
 public:
  void add(const nlohmann::json& row);

  [[nodiscard]] nlohmann::ordered_json ranks() const;
  /// Who computes longest, if the others wait for it noticeably; else null.
  [[nodiscard]] nlohmann::ordered_json late() const;

 private:
  struct times {
    std::uint64_t steps = 0;
    double compute = 0;
    double wait = 0;
    double barrier = 0;
    double checkpoint = 0;

    void add(const times& other) noexcept;
  };

  struct rank {
    std::uint64_t step = 0;
    times total;
    std::deque<times> recent;

    [[nodiscard]] times lately() const noexcept;
  };

  std::map<std::uint64_t, rank> ranks_;
};

/// What happened. A plain class.
class event_story {
 public:
  void add(nlohmann::json event);

  [[nodiscard]] nlohmann::ordered_json events() const;
  [[nodiscard]] nlohmann::ordered_json counts() const;
  [[nodiscard]] nlohmann::ordered_json failures() const;
  [[nodiscard]] nlohmann::ordered_json checkpoints() const;
  /// The drivers' own accounts of their time, added up; null before the first.
  [[nodiscard]] nlohmann::ordered_json goodput() const;
  /// The members of the last start, as that event has them.
  [[nodiscard]] const nlohmann::json& members() const noexcept { return members_; }

  static constexpr std::size_t most_events = 300;
  static constexpr std::size_t most_failures = 50;
  static constexpr std::size_t most_checkpoints = 100;

 private:
  void remember(nlohmann::json event);
  void merge_pause(nlohmann::json event);

  std::deque<nlohmann::json> events_;
  std::deque<nlohmann::json> failures_;
  std::deque<nlohmann::json> checkpoints_;
  std::map<std::string, std::uint64_t> counts_;
  nlohmann::json members_ = nlohmann::json::array();
  std::uint64_t starts_ = 0;
  /// The last account of each process of the run, of which `past_` has those before.
  nlohmann::json account_;
  nlohmann::ordered_json past_ = nlohmann::ordered_json::object();
};

/// `run.json` as far as people ask for it: configuration, program, seed. Pure.
[[nodiscard]] nlohmann::ordered_json describe_run(const nlohmann::json& run);

/// `result.json` without what the story has otherwise. Pure.
[[nodiscard]] nlohmann::ordered_json describe_result(const nlohmann::json& result);

/// With null for what is not finite.
[[nodiscard]] nlohmann::ordered_json to_json(const named_curve& curve);

} // namespace troupe::runtime
