#pragma once

#include <troupe/inference/batch_predictor.hpp>

namespace mnist {

/// Predicts for the IDX file of images that the option "file" names: the likeliest class of each image and its
/// probability. Throws `troupe::exception` for a checkpoint of another model or a file of another kind.
[[nodiscard]] troupe::inference::prediction_job
make_prediction_job(const troupe::inference::prediction_request& request);

} // namespace mnist
