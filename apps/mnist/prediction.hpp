#pragma once

#include <troupe/inference/batch_predictor.hpp>
#include <troupe/inference/loaded_model.hpp>

namespace mnist {

/// Predicts for the IDX file of images that the option "file" names: the likeliest class of each image and its
/// probability. Throws `troupe::exception` for a checkpoint of another model or a file of another kind.
[[nodiscard]] troupe::inference::prediction_job
make_prediction_job(const troupe::inference::prediction_request& request);

/// Loads the network of a checkpoint, to predict the likeliest class of an image and its probability in this thread,
/// without LibTorch's own. Throws `troupe::exception` for a checkpoint of another model.
[[nodiscard]] troupe::inference::loaded_model load_model(const troupe::serialization::checkpoint& source);

} // namespace mnist
