#pragma once

#include <troupe/boosting/settings.hpp>
#include <troupe/data/feature_rows.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/error.hpp>
#include <troupe/inference/predictor.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/files/existing_file.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

/// Operations on the model in a checkpoint.
namespace troupe::boosting {

/// The columns on which a checkpoint's model was trained. Fails with `errc::not_found` for any other checkpoint.
[[nodiscard]] expected<std::vector<std::string>> feature_names(const tree_library& library,
                                                               const serialization::checkpoint& source);

/// Categories in the format of the state's values. A text that is not UTF-8 becomes a list of its bytes.
[[nodiscard]] nlohmann::json json_of(const data::category_texts& texts);
/// The inverse of `json_of`. Throws JSON exceptions.
[[nodiscard]] data::category_texts category_texts_of(const nlohmann::json& json);

/// A model's inputs.
struct model_inputs {
  std::vector<std::string> columns;
  /// The categories of its categorical columns in the training data.
  data::known_categories categories = {};
  /// Makes these columns from the data's; null if none is needed.
  std::shared_ptr<const data::preprocessor> preprocessor = {};
};

/// The inputs of a checkpoint's model. Checkpoints of older versions have no categories. Fails as `feature_names` and
/// `data::load_preprocessor` do.
[[nodiscard]] expected<model_inputs> inputs_of(const tree_library& library, const serialization::checkpoint& source);

/// A model that is ready to predict.
struct loaded_model {
  /// The number of features per row.
  std::uint64_t features = 0;
  /// Predicts for `rows` rows: the same number of values for each, row after row. Throws `exception`.
  std::function<std::vector<float>(std::span<const float> values, std::uint64_t rows)> predict;
  /// For `inference::predictor::library`: "XGBoost 1.7.4".
  std::string library = {};
};

/// A predictor for rows with these inputs. Its output is "prediction", or one per class: "prediction_0" and so on.
/// Throws as the model does.
[[nodiscard]] inference::predictor_ptr make_predictor(model_inputs inputs, loaded_model model);

/// The predictor for a checkpoint's model, which `load` makes from its bytes. Fails with `errc::not_found` for any
/// other checkpoint, and with `errc::damaged` if `load` throws `errc::user_error`; other exceptions of `load` become
/// errors unchanged.
[[nodiscard]] expected<inference::predictor_ptr>
load_predictor(const tree_library& library, const serialization::checkpoint& source,
               const std::function<loaded_model(std::span<const std::byte> model)>& load);

/// Writes a checkpoint's model, converted by `convert`, to a file. Fails as `load_predictor` does, and with
/// `errc::already_exists` or `errc::io_error`.
[[nodiscard]] expected<void>
export_model(const tree_library& library, const serialization::checkpoint& source, const std::filesystem::path& path,
             serialization::existing_file existing,
             const std::function<std::vector<std::byte>(std::vector<std::byte> model)>& convert);

} // namespace troupe::boosting
