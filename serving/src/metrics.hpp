#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace troupe::serving {

/// Counts values in buckets, as Prometheus' histograms do. Thread-safe.
class histogram {
 public:
  /// `bounds` are ascending, at most 16, and outlive it.
  explicit histogram(std::span<const double> bounds) : bounds_(bounds) {}

  void add(double value) noexcept;
  /// The lines of an exposition.
  void append_to(std::string& text, std::string_view name, std::string_view help) const;

 private:
  static constexpr std::size_t most_ = 16;

  std::span<const double> bounds_;
  std::array<std::atomic<std::uint64_t>, most_ + 1> counts_{};
  std::atomic<double> sum_ = 0;
};

/// What is true at the moment of an exposition.
struct metrics_view {
  std::uint64_t queued_requests = 0;
  std::uint64_t queued_rows = 0;
  std::size_t connections = 0;
  std::uint64_t model_step = 0;
  bool is_ready = false;
  std::uint32_t replicas = 0;
};

/// What a server has done. Thread-safe.
class metrics {
 public:
  metrics();

  void count_response(int status) noexcept;
  void count_prediction(double seconds, std::uint64_t rows) noexcept;
  void count_batch(double seconds, std::uint64_t rows) noexcept;
  void count_reload(bool has_succeeded) noexcept;
  void count_lost_replica() noexcept;

  /// Prometheus' text format 0.0.4.
  [[nodiscard]] std::string text(const metrics_view& now) const;

 private:
  std::array<std::atomic<std::uint64_t>, 600> responses_{};
  std::atomic<std::uint64_t> rows_ = 0;
  std::atomic<std::uint64_t> reloads_ = 0;
  std::atomic<std::uint64_t> failed_reloads_ = 0;
  std::atomic<std::uint64_t> lost_replicas_ = 0;
  histogram request_seconds_;
  histogram batch_seconds_;
  histogram batch_rows_;
};

} // namespace troupe::serving
