#pragma once

#include "exchange.hpp"
#include "library.hpp"

#include <troupe/messages.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// RAII wrappers of LightGBM's data sets and boosters. Errors of the library are thrown as `exception`.
namespace troupe::lightgbm {

/// Throws unless its argument is 0: `library::check`, or `exchange::check`.
using checker = std::function<void(int result)>;

/// Samples with their features, binned.
class binned_set {
 public:
  /// From `rows` rows of equally many features, row after row. The bin boundaries are those of `reference`, or are
  /// found in these rows.
  binned_set(library_ptr functions, std::span<const float> values, std::uint64_t rows, const std::string& parameters,
             const binned_set* reference = nullptr);
  binned_set(binned_set&& other) noexcept
      : library_(std::move(other.library_)), handle_(std::exchange(other.handle_, nullptr)) {}
  binned_set& operator=(binned_set&&) = delete;
  ~binned_set();

  /// Sets "label" or "weight": one number per row.
  void set(const char* field, std::span<const float> values);
  /// Sets the scores from which boosting starts: for each output those of all rows.
  void set_initial_scores(std::span<const double> scores);

  [[nodiscard]] void* handle() const noexcept { return handle_; }

 private:
  library_ptr library_;
  void* handle_ = nullptr;
};

class booster {
 public:
  /// For training. `check` handles the result of each call that may communicate. The set must outlive the booster.
  booster(library_ptr functions, const binned_set& training, const std::string& parameters, checker check);
  /// From a trained model.
  booster(library_ptr functions, const std::string& model);
  booster(booster&& other) noexcept
      : library_(std::move(other.library_)),
        check_(std::move(other.check_)),
        handle_(std::exchange(other.handle_, nullptr)) {}
  booster& operator=(booster&&) = delete;
  ~booster();

  /// The set must outlive the booster.
  void add_evaluation(const binned_set& set);
  /// Computes one round. A round that finds no split adds nothing.
  void update();
  /// The same with the gradients of a custom objective, and their derivatives: `outputs` per row, row after row.
  void update(std::span<const float> gradients, std::span<const float> hessians, std::uint64_t outputs);
  /// The predictions for a set of `rows` rows during training, 0 for the training set, 1 for the first evaluation set:
  /// row after row. With a custom objective they are the scores.
  [[nodiscard]] std::vector<float> current(std::size_t set, std::uint64_t rows) const;
  /// The metrics of the evaluation sets, as "NAME-METRIC".
  [[nodiscard]] metric_map evaluate(std::span<const std::string> names) const;
  /// Inserts the trees of an earlier model before this one's.
  void put_in_front(const booster& earlier);
  /// The model as LightGBM's own text.
  [[nodiscard]] std::string save() const;
  [[nodiscard]] std::uint64_t features() const;
  /// `outputs` numbers per row, row after row. With `raw_scores`, before the objective's transformation.
  struct predictions {
    std::uint64_t outputs = 0;
    std::vector<double> values;
  };
  [[nodiscard]] predictions predict(std::span<const float> values, std::uint64_t rows, bool raw_scores) const;

 private:
  library_ptr library_;
  checker check_;
  void* handle_ = nullptr;
};

/// LightGBM ignores what it does not know of a newer format. Throws `errc::user_error` if `model` has a newer one than
/// `rewritten`, which is the same model as the library writes it.
void check_format(std::string_view model, std::string_view rewritten);

} // namespace troupe::lightgbm
