#include "booster.hpp"
#include "settings.hpp"

#include <troupe/data/feature_rows.hpp>
#include <troupe/inference/model_room.hpp>
#include <troupe/serialization/durable_file.hpp>

#include <filesystem>
#include <limits>
#include <utility>

namespace troupe::lightgbm {

namespace {

class booster_predictor final : public inference::predictor {
 public:
  booster_predictor(library_ptr functions, const std::string& model, std::vector<std::string> features)
      : model_(std::move(functions), model), features_(std::move(features)) {
    // How many outputs it has, a row of missing values tells.
    auto row = std::vector<float>(model_.features(), std::numeric_limits<float>::quiet_NaN());
    auto outputs = model_.predict(row, 1, false).outputs;
    if (outputs == 1)
      outputs_ = {"prediction"};
    for (std::uint64_t i = 0; outputs > 1 && i < outputs; ++i)
      outputs_.push_back("prediction_" + std::to_string(i));
  }

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    auto values = data::feature_rows(rows, features_);
    if (!values)
      return fail(std::move(values.error()));
    try {
      auto found = model_.predict(*values, rows.size(), false).values;
      if (found.size() != out.size())
        return fail(errc::mismatch, "the model has given " + std::to_string(found.size()) + " numbers for " +
                                        std::to_string(rows.size()) + " rows");
      for (std::size_t i = 0; i < found.size(); ++i)
        out[i] = static_cast<float>(found[i]);
      return {};
    } catch (const failure& x) {
      return fail(errc::mismatch, x.reason().message);
    }
  }

 private:
  booster model_;
  std::vector<std::string> features_;
  std::vector<std::string> outputs_;
};

expected<std::string> read_text(const serialization::checkpoint& source) {
  auto model = inference::read_model(source, model_tensor);
  if (!model)
    return fail(std::move(model.error()));
  return std::string{reinterpret_cast<const char*>(model->data()), model->size()};
}

} // namespace

expected<std::vector<std::string>> feature_names(const serialization::checkpoint& source) {
  try {
    if (source.find(model_tensor))
      return nlohmann::json::parse(source.content().values_json)
          .at(description_value)
          .at("features")
          .get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    // Told below.
  }
  return fail(errc::not_found,
              source.directory().string() + " does not say what columns a model of LightGBM's was trained on");
}

expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                  const std::filesystem::path& asked) {
  auto features = feature_names(source);
  if (!features)
    return fail(std::move(features.error()));
  auto model = read_text(source);
  if (!model)
    return fail(std::move(model.error()));
  auto path = find_library(asked);
  if (!path)
    return fail(std::move(path.error()));
  auto functions = library::open(*path);
  if (!functions)
    return fail(std::move(functions.error()));
  try {
    return std::make_unique<booster_predictor>(std::move(*functions), *model, std::move(*features));
  } catch (const failure& x) {
    return fail(errc::damaged, source.directory().string() + ": " + x.reason().message);
  }
}

expected<void> export_model(const serialization::checkpoint& source, const std::filesystem::path& path,
                            serialization::existing_file existing) {
  if (existing == serialization::existing_file::keep && std::filesystem::exists(path))
    return fail(errc::already_exists, path.string() + " is there already: choose another name, or have it replaced");
  auto model = read_text(source);
  if (!model)
    return fail(std::move(model.error()));
  return serialization::write_file_durably(path, *model);
}

} // namespace troupe::lightgbm
