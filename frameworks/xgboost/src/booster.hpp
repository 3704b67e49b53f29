#pragma once

#include <troupe/error.hpp>
#include <troupe/messages.hpp>

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// XGBoost's C interface, as values that clean up behind them. Whatever it refuses is thrown as `library_error`. The
/// collective layer is the thread's: what trains together stays in one thread.
namespace troupe::xgboost {

/// What XGBoost says.
class library_error : public exception {
 public:
  explicit library_error(std::string text) : exception{errc::user_error, std::move(text)} {}
};

/// Throws what XGBoost has said last unless `result` is 0.
void check(int result);

/// The library's version: "1.7.4".
[[nodiscard]] std::string version_text();

/// Samples with their features, row after row; NaN is a missing value.
class matrix {
 public:
  /// Copies `values`: `rows` times as many features each.
  matrix(std::span<const float> values, std::uint64_t rows, int threads);
  matrix(matrix&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  matrix& operator=(matrix&&) = delete;
  ~matrix();

  /// "label" or "weight": a number for each row.
  void set(const char* field, std::span<const float> values);

  [[nodiscard]] void* handle() const noexcept { return handle_; }

 private:
  void* handle_ = nullptr;
};

class booster {
 public:
  /// For training on `training`, and evaluating all of `cached`.
  explicit booster(std::span<void* const> cached);
  booster() : booster(std::span<void* const>{}) {}
  booster(booster&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  booster& operator=(booster&&) = delete;
  ~booster();

  void set(const std::string& name, const std::string& value);

  /// `round` counts from 0.
  void update(std::uint64_t round, const matrix& training);

  /// The metrics of each set, as "NAME-METRIC".
  [[nodiscard]] metric_map evaluate(std::uint64_t round, std::span<const std::pair<std::string, const matrix*>> sets);

  /// The model in XGBoost's own format: "ubj" or "json".
  [[nodiscard]] std::vector<std::byte> save(std::string_view format = "ubj") const;
  void load(std::span<const std::byte> model);

  /// One row of predictions for each row.
  struct predictions {
    std::uint64_t outputs = 0;
    /// Valid until the next call.
    std::span<const float> values;
  };
  [[nodiscard]] predictions predict(const matrix& rows);

 private:
  void* handle_ = nullptr;
};

/// Reads "[7]\ttrain-rmse:0.25\tvalid-rmse:0.5". What is no number is left out.
[[nodiscard]] metric_map parse_evaluation(std::string_view text);

} // namespace troupe::xgboost
