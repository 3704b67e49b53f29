#pragma once

#include <troupe/inference/batch_predictor.hpp>

namespace mnist {

/// Predicts for the IDX file of images that the option "file" names: for each image its likeliest class, and that
/// class's probability. Throws `troupe::exception` for a checkpoint of another model and for another file.
[[nodiscard]] troupe::inference::prediction_job
make_prediction_job(const troupe::inference::prediction_request& request);

} // namespace mnist
