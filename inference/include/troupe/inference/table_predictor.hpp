#pragma once

#include <troupe/data/column.hpp>
#include <troupe/error.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <string_view>
#include <vector>

namespace troupe::inference {

/// Predicts with a `data::dense_model` behind what `data::prepare` has learned, from a run's checkpoint. Takes the
/// table's columns, without the one that was learned. Its outputs are the probabilities of the classes, named by their
/// texts, or "label", the amount. Fails as `data::load_preprocessor` and `data::dense_model::load` do.
[[nodiscard]] expected<predictor_ptr> load_table_predictor(const serialization::checkpoint& source,
                                                           std::string_view inputs = "inputs",
                                                           std::string_view model = "model");

/// The columns that such a predictor takes: numbers as f64, and texts with the categories that were learned. Fails as
/// `data::load_preprocessor` does, and with `errc::mismatch` for other preprocessors than those of `data::prepare`.
[[nodiscard]] expected<std::vector<data::column_spec>> table_columns(const serialization::checkpoint& source,
                                                                     std::string_view inputs = "inputs");

} // namespace troupe::inference
