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

/// A trained model that predicts numbers for rows of a data set. The result for a row does not depend on the other
/// rows. Derive from this class for your own kind. Used by one thread at a time.
class predictor {
 public:
  predictor() = default;
  predictor(const predictor&) = delete;
  predictor& operator=(const predictor&) = delete;
  virtual ~predictor() = default;

  /// The name of each predicted number; the columns of a CSV file. Constant.
  [[nodiscard]] virtual const std::vector<std::string>& outputs() const noexcept = 0;

  /// The library that computes, and its version: "ONNX Runtime 1.32.0". Workers that predict together compare it.
  /// Constant; empty if the program itself computes.
  [[nodiscard]] virtual std::string library() const { return {}; }

  /// Predicts for all rows of a batch, which it may change. `out` holds outputs().size() numbers per row, row after
  /// row. Fails with `errc::not_found` or `errc::mismatch` for unsuitable columns.
  [[nodiscard]] virtual expected<void> predict(data::batch& rows, std::span<float> out) = 0;

  /// Asked after `predict` has failed. False: what it predicts with is lost, such as the process that it asks, and it
  /// fails from now on. A server then has other replicas predict for these rows, and loads the model again.
  [[nodiscard]] virtual bool is_usable() const noexcept { return true; }
};

using predictor_ptr = std::unique_ptr<predictor>;

/// A predictor behind the preprocessor that its model was trained with (`data::load_preprocessor`).
[[nodiscard]] predictor_ptr preprocessed(std::shared_ptr<const data::preprocessor> how, predictor_ptr model);

/// Predicts for these rows of a data set in this thread: outputs().size() numbers per row. Fails as fetching and
/// predicting do.
[[nodiscard]] expected<std::vector<float>> predict_rows(predictor& model, const data::data_set& set,
                                                        std::span<const std::uint64_t> rows);

} // namespace troupe::inference
