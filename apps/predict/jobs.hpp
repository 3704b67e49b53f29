#pragma once

#include <troupe/error.hpp>
#include <troupe/inference/batch_predictor.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// What `predict` can make of a checkpoint. `options.file` is what to predict for.
namespace predict {

/// Whose checkpoint it is.
enum class model_kind : std::uint8_t { charlm, xgboost, lightgbm, mnist };

/// By the tensor that holds the model; what is of no known kind is taken for charlm's. Fails with
/// `errc::invalid_argument` for gpt's, with what to use instead.
[[nodiscard]] troupe::expected<model_kind> kind_of(const troupe::serialization::checkpoint& source);

/// charlm: for each window of the text's held-out part the likeliest next byte, and the log-probability (in nats) of
/// the one that comes.
[[nodiscard]] troupe::inference::prediction_job make_charlm_job(const troupe::inference::prediction_request& request);

/// trees: what the library says of each row of a CSV table with a header. `options.lightgbm_library` is LightGBM's
/// file, or empty.
[[nodiscard]] troupe::inference::prediction_job make_trees_job(const troupe::inference::prediction_request& request,
                                                               model_kind kind);

/// A model of trees, and the columns that it was trained on.
struct trees_model {
  troupe::inference::predictor_ptr model;
  std::vector<std::string> features;
};

/// Throws `exception` where this program was built without XGBoost.
[[nodiscard]] trees_model load_xgboost_model(const troupe::serialization::checkpoint& source);

} // namespace predict
