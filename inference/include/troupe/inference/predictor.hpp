#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe::inference {

/// A trained model that says something about rows of a data set: the same numbers for a row, whichever rows come with
/// it. One's own kind derives from this. Used by one thread at a time.
class predictor {
 public:
  predictor() = default;
  predictor(const predictor&) = delete;
  predictor& operator=(const predictor&) = delete;
  virtual ~predictor() = default;

  /// What it says of each row, one name for each number: the columns of a CSV file. Does not change.
  [[nodiscard]] virtual const std::vector<std::string>& outputs() const noexcept = 0;

  /// Predicts for all rows of a batch, which it may change. `out` holds outputs().size() numbers for each, row after
  /// row. Fails with `errc::not_found` or `errc::mismatch` for columns that it cannot take.
  [[nodiscard]] virtual expected<void> predict(data::batch& rows, std::span<float> out) = 0;
};

using predictor_ptr = std::unique_ptr<predictor>;

/// A predictor behind the preprocessor that its model was trained with (`data::load_preprocessor`).
[[nodiscard]] predictor_ptr preprocessed(std::shared_ptr<const data::preprocessor> how, predictor_ptr model);

/// Predicts for these rows of a data set in this thread: outputs().size() numbers for each. Fails as fetching and
/// predicting do.
[[nodiscard]] expected<std::vector<float>> predict_rows(predictor& model, const data::data_set& set,
                                                        std::span<const std::uint64_t> rows);

} // namespace troupe::inference
