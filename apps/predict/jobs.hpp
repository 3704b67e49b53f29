#pragma once

#include <troupe/error.hpp>
#include <troupe/inference/batch_predictor.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <cstdint>
#include <string>
#include <vector>

/// The predictions that `predict` can make with a checkpoint. `options.file` names the input file.
namespace predict {

/// The program or library that wrote a checkpoint.
enum class model_kind : std::uint8_t { charlm, xgboost, lightgbm, mnist, onnx, keras };

/// Recognises a checkpoint by the tensor that contains the model. Unknown checkpoints count as charlm's. Fails with
/// `errc::invalid_argument` for a checkpoint of gpt.
[[nodiscard]] troupe::expected<model_kind> kind_of(const troupe::serialization::checkpoint& source);

/// charlm: for each window of the text's held-out part, the likeliest next byte and the log-probability (in nats) of
/// the actual next byte.
[[nodiscard]] troupe::inference::prediction_job make_charlm_job(const troupe::inference::prediction_request& request);

/// trees: the library's prediction for each row of a CSV table with a header. `options.lightgbm_library` is the path of
/// LightGBM's library, or empty.
[[nodiscard]] troupe::inference::prediction_job make_trees_job(const troupe::inference::prediction_request& request,
                                                               model_kind kind);

/// An ONNX model: its outputs for each row of a CSV table with a header, an NPY array or IDX images.
/// `options.onnxruntime_library` is the path of ONNX Runtime's library, or empty.
[[nodiscard]] troupe::inference::prediction_job make_onnx_job(const troupe::inference::prediction_request& request);

/// keras: the model's outputs for each sample of an NPY array or of IDX images. `options.keras_model` is the exported
/// model's directory.
[[nodiscard]] troupe::inference::prediction_job make_keras_job(const troupe::inference::prediction_request& request);

/// A tree model and the columns that it was trained on.
struct trees_model {
  troupe::inference::predictor_ptr model;
  std::vector<std::string> features;
};

/// Throws `exception` if this program was built without XGBoost.
[[nodiscard]] trees_model load_xgboost_model(const troupe::serialization::checkpoint& source);

} // namespace predict
