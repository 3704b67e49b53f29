#pragma once

#include <troupe/data/column.hpp>
#include <troupe/inference/batch_predictor.hpp>

#include <vector>

namespace mnist {

/// Predicts for the IDX file of images that the option "file" names: the likeliest class of each image and its
/// probability. Throws `troupe::exception` for a checkpoint of another model or a file of another kind.
[[nodiscard]] troupe::inference::prediction_job
make_prediction_job(const troupe::inference::prediction_request& request);

/// A predictor of the likeliest class of an image and its probability, and the column that it takes.
struct image_model {
  troupe::inference::predictor_ptr predictor;
  std::vector<troupe::data::column_spec> inputs;
};

/// Loads the network of a checkpoint, to predict in this thread, without LibTorch's own. Throws `troupe::exception` for
/// a checkpoint of another model.
[[nodiscard]] image_model load_model(const troupe::serialization::checkpoint& source);

} // namespace mnist
