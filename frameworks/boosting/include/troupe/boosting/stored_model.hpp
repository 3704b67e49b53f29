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

/// What can be done with a model that a run has kept.
namespace troupe::boosting {

/// The columns that a checkpoint's model was trained on. Fails with `errc::not_found` for a checkpoint of another kind.
[[nodiscard]] expected<std::vector<std::string>> feature_names(const tree_library& library,
                                                               const serialization::checkpoint& source);

/// Categories as they stand in the state's values. A text that is no UTF-8 is the list of its bytes.
[[nodiscard]] nlohmann::json json_of(const data::category_texts& texts);
/// Reads that back. Throws JSON's exceptions.
[[nodiscard]] data::category_texts category_texts_of(const nlohmann::json& json);

/// What a model takes of a row.
struct model_inputs {
  std::vector<std::string> columns;
  /// Of categorical columns, as they were when it was trained.
  data::known_categories categories = {};
  /// Makes the columns of others; null where it takes them as they are.
  std::shared_ptr<const data::preprocessor> preprocessor = {};
};

/// What a checkpoint's model takes. One that was taken before categories were kept has none. Fails as `feature_names`
/// and `data::load_preprocessor` do.
[[nodiscard]] expected<model_inputs> inputs_of(const tree_library& library, const serialization::checkpoint& source);

/// A model that has been made ready to predict.
struct loaded_model {
  /// The numbers that it takes of a row.
  std::uint64_t features = 0;
  /// What it says of `rows` rows, as many numbers for each, row after row. Throws `exception`.
  std::function<std::vector<float>(std::span<const float> values, std::uint64_t rows)> predict;
};

/// A predictor on rows with these inputs. It has one output, "prediction", or one for each class, "prediction_0" and
/// so on. Throws what the model does.
[[nodiscard]] inference::predictor_ptr make_predictor(model_inputs inputs, loaded_model model);

/// The predictor of a checkpoint's model, made from its bytes by `load`. Fails with `errc::not_found` for a checkpoint
/// of another kind, and with `errc::damaged` for what `load` throws as `errc::user_error`; what else it throws is the
/// error as it is.
[[nodiscard]] expected<inference::predictor_ptr>
load_predictor(const tree_library& library, const serialization::checkpoint& source,
               const std::function<loaded_model(std::span<const std::byte> model)>& load);

/// Writes the bytes that `convert` makes of a checkpoint's model. Fails as `load_predictor` does, with
/// `errc::already_exists` or `errc::io_error`.
[[nodiscard]] expected<void>
export_model(const tree_library& library, const serialization::checkpoint& source, const std::filesystem::path& path,
             serialization::existing_file existing,
             const std::function<std::vector<std::byte>(std::vector<std::byte> model)>& convert);

} // namespace troupe::boosting
