#pragma once

#include <troupe/error.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <string_view>

namespace troupe::inference {

/// Predicts with a `data::dense_model` behind what `data::prepare` has learned, from a run's checkpoint. Takes the
/// table's columns, without the one that was learned. Its outputs are the probabilities of the classes, named by their
/// texts, or "label", the amount. Fails as `data::load_preprocessor` and `data::dense_model::load` do.
[[nodiscard]] expected<predictor_ptr> load_table_predictor(const serialization::checkpoint& source,
                                                           std::string_view inputs = "inputs",
                                                           std::string_view model = "model");

} // namespace troupe::inference
