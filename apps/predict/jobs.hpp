#pragma once

#include <troupe/inference/batch_predictor.hpp>

/// What `predict` can make of a checkpoint. `options.file` is what to predict for.
namespace predict {

/// charlm: for each window of the text's held-out part the likeliest next byte, and the log-probability (in nats) of
/// the one that comes.
[[nodiscard]] troupe::inference::prediction_job make_charlm_job(const troupe::inference::prediction_request& request);

/// trees: what XGBoost says of each row of a CSV table with a header. Throws `failure` where this program was built
/// without XGBoost.
[[nodiscard]] troupe::inference::prediction_job make_trees_job(const troupe::inference::prediction_request& request);

} // namespace predict
