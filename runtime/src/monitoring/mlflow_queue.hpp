#pragma once

#include <troupe/messages/worker.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>
#include <string>

namespace troupe::runtime {

/// The points of a run's metrics that MLflow has not got yet. A plain class.
class mlflow_queue {
 public:
  /// What one `log-batch` may have.
  static constexpr std::size_t most_in_batch = 1000;
  /// More points than this do not wait: later ones are dropped and counted.
  static constexpr std::size_t most_waiting = 100'000;

  /// MLflow has the points of steps up to this one: those that come again, or wait, are ignored.
  void begin_after(std::uint64_t step);

  void add(const metric_row& row);
  void add(std::string name, double value, std::uint64_t time_ms, std::uint64_t step);

  [[nodiscard]] bool is_empty() const noexcept { return points_.empty(); }
  [[nodiscard]] std::size_t size() const noexcept { return points_.size(); }
  /// Points that were dropped, in all.
  [[nodiscard]] std::uint64_t dropped() const noexcept { return dropped_; }
  /// Points that MLflow has taken.
  [[nodiscard]] std::uint64_t taken() const noexcept { return taken_; }

  /// The oldest points, as `log-batch` has them. They stay until `remove`.
  [[nodiscard]] nlohmann::json batch() const;
  /// The points of the last `batch` have arrived, or are refused for good.
  void remove(std::size_t count, bool arrived);

 private:
  struct point {
    std::string name;
    double value = 0;
    std::uint64_t time_ms = 0;
    std::uint64_t step = 0;
  };

  std::deque<point> points_;
  std::uint64_t known_ = 0;
  std::uint64_t dropped_ = 0;
  std::uint64_t taken_ = 0;
};

/// A name as MLflow accepts them: letters, digits, '_', '-', '.', ' ', ':' and '/', at most 250; others become '_'.
[[nodiscard]] std::string mlflow_name(const std::string& name);

} // namespace troupe::runtime
