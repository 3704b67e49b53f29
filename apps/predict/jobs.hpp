#pragma once

#include "models.hpp"

#include <troupe/inference/batch_predictor.hpp>

/// The predictions that `predict` can make with a checkpoint. `options.file` names the input file.
namespace predict {

/// charlm: for each window of the text's held-out part, the likeliest next byte and the log-probability (in nats) of
/// the actual next byte.
[[nodiscard]] troupe::inference::prediction_job make_charlm_job(const troupe::inference::prediction_request& request);

/// trees: the library's prediction for each row of a CSV table with a header. `options.lightgbm_library` is the path of
/// LightGBM's library, or empty.
[[nodiscard]] troupe::inference::prediction_job make_trees_job(const troupe::inference::prediction_request& request,
                                                               model_kind kind);

/// A model of a table (`data::dense_model` behind `data::prepare`): its outputs for each row of a CSV table with a
/// header.
[[nodiscard]] troupe::inference::prediction_job make_table_job(const troupe::inference::prediction_request& request);

/// An ONNX model: its outputs for each row of a CSV table with a header, an NPY array or IDX images.
/// `options.onnxruntime_library` is the path of ONNX Runtime's library, or empty.
[[nodiscard]] troupe::inference::prediction_job make_onnx_job(const troupe::inference::prediction_request& request);

/// keras: the model's outputs for each sample of an NPY array or of IDX images. `options.keras_model` is the exported
/// model's directory.
[[nodiscard]] troupe::inference::prediction_job make_keras_job(const troupe::inference::prediction_request& request);

} // namespace predict
