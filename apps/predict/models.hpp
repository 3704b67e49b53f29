#pragma once

#include <troupe/error.hpp>
#include <troupe/inference/loaded_model.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <cstdint>
#include <filesystem>

/// The models of the programs in apps/, for `predict` and `troupe-serve`.
namespace predict {

/// The program or library that wrote a checkpoint.
enum class model_kind : std::uint8_t { charlm, xgboost, lightgbm, mnist, onnx, keras, table };

/// Recognises a checkpoint by the tensor that contains the model. Unknown checkpoints count as charlm's. Fails with
/// `errc::invalid_argument` for a checkpoint of gpt.
[[nodiscard]] troupe::expected<model_kind> kind_of(const troupe::serialization::checkpoint& source);

using troupe::inference::loaded_model;

/// Files outside of the checkpoint that some kinds need; empty for the usual places.
struct model_files {
  std::filesystem::path lightgbm_library;
  std::filesystem::path onnxruntime_library;
  /// The exported Keras model's directory.
  std::filesystem::path keras_model;
};

/// Loads a model of any kind but mnist, which needs LibTorch. Throws `exception` as the kind's own function does.
[[nodiscard]] loaded_model load_model(const troupe::serialization::checkpoint& source, const model_files& files);

/// charlm: the likeliest next byte and the log-probability (in nats) of the actual next byte.
[[nodiscard]] loaded_model load_charlm_model(const troupe::serialization::checkpoint& source);

/// Trees: features are columns of f32.
[[nodiscard]] loaded_model load_xgboost_model(const troupe::serialization::checkpoint& source);
[[nodiscard]] loaded_model load_lightgbm_model(const troupe::serialization::checkpoint& source,
                                               const std::filesystem::path& library);

} // namespace predict
