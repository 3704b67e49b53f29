#pragma once

#include "library.hpp"

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

/// RAII wrappers of XGBoost's data sets and boosters. Errors of the library are thrown as `library_error`. XGBoost's
/// collective layer is thread-local, so objects that train together stay in one thread.
namespace troupe::xgboost {

/// Samples with their features, row after row; NaN is a missing value.
class matrix {
 public:
  /// Copies `values`: `rows` rows of equally many features.
  matrix(library_ptr functions, std::span<const float> values, std::uint64_t rows, int threads);
  matrix(matrix&& other) noexcept
      : library_(std::move(other.library_)), handle_(std::exchange(other.handle_, nullptr)) {}
  matrix& operator=(matrix&&) = delete;
  ~matrix();

  /// Sets "label" or "weight": one number per row.
  void set(const char* field, std::span<const float> values);

  [[nodiscard]] void* handle() const noexcept { return handle_; }

 private:
  library_ptr library_;
  void* handle_ = nullptr;
};

class booster {
 public:
  /// For training on the first set of `cached`, and evaluating all of them.
  explicit booster(library_ptr functions, std::span<void* const> cached = {});
  booster(booster&& other) noexcept
      : library_(std::move(other.library_)), handle_(std::exchange(other.handle_, nullptr)) {}
  booster& operator=(booster&&) = delete;
  ~booster();

  void set(const std::string& name, const std::string& value);

  /// `round` counts from 0.
  void update(std::uint64_t round, const matrix& training);
  /// The same with the gradients of a custom objective, and their derivatives: `outputs` per row, row after row.
  void boost(std::uint64_t round, const matrix& training, std::uint64_t outputs, std::span<float> gradients,
             std::span<float> hessians);

  /// The metrics of each set, as "NAME-METRIC".
  [[nodiscard]] metric_map evaluate(std::uint64_t round, std::span<const std::pair<std::string, const matrix*>> sets);

  /// The model in an XGBoost format: "ubj" or "json".
  [[nodiscard]] std::vector<std::byte> save(std::string_view format = "ubj") const;
  void load(std::span<const std::byte> model);

  /// `outputs` numbers per row, row after row.
  struct predictions {
    std::uint64_t outputs = 0;
    /// Valid until the next call.
    std::span<const float> values;
  };
  [[nodiscard]] predictions predict(const matrix& rows);
  /// The scores of the training set before the objective's transformation, for the gradients of the next round.
  [[nodiscard]] predictions training_scores(const matrix& training);

 private:
  [[nodiscard]] predictions predict(const matrix& rows, const char* how);

  library_ptr library_;
  void* handle_ = nullptr;
};

/// Parses "[7]\ttrain-rmse:0.25\tvalid-rmse:0.5". Values that are not numbers are skipped.
[[nodiscard]] metric_map parse_evaluation(std::string_view text);

} // namespace troupe::xgboost
