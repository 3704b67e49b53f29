#include "booster.hpp"
#include "settings.hpp"

#include <troupe/data/feature_rows.hpp>
#include <troupe/inference/model_room.hpp>
#include <troupe/serialization/durable_file.hpp>

#include <algorithm>
#include <filesystem>
#include <limits>

namespace troupe::xgboost {

namespace {

/// The number of features is the model's own.
std::uint64_t width_of(const booster& model) {
  auto text = model.save("json");
  const auto* begin = reinterpret_cast<const char*>(text.data());
  auto content = nlohmann::json::parse(begin, begin + text.size());
  return std::stoull(content.at("learner").at("learner_model_param").at("num_feature").get<std::string>());
}

class booster_predictor final : public inference::predictor {
 public:
  booster_predictor(std::span<const std::byte> model, std::vector<std::string> features)
      : features_(std::move(features)) {
    model_.load(model);
    model_.set("nthread", "1");
    // How many outputs it has, a row of missing values tells.
    auto row = std::vector<float>(width_of(model_), std::numeric_limits<float>::quiet_NaN());
    auto outputs = model_.predict(matrix{row, 1, 1}).outputs;
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
      auto found = model_.predict(matrix{*values, rows.size(), 1});
      if (found.values.size() != out.size())
        return fail(errc::mismatch, "the model has " + std::to_string(found.outputs) + " outputs, not " +
                                        std::to_string(outputs_.size()));
      std::ranges::copy(found.values, out.begin());
      return {};
    } catch (const library_error& x) {
      return fail(errc::mismatch, x.reason().message);
    }
  }

 private:
  booster model_;
  std::vector<std::string> features_;
  std::vector<std::string> outputs_;
};

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
              source.directory().string() + " does not say what columns a model of XGBoost's was trained on");
}

expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source) {
  auto model = inference::read_model(source, model_tensor);
  if (!model)
    return fail(std::move(model.error()));
  auto features = feature_names(source);
  if (!features)
    return fail(std::move(features.error()));
  try {
    return std::make_unique<booster_predictor>(*model, std::move(*features));
  } catch (const library_error& x) {
    return fail(errc::damaged, source.directory().string() + ": " + x.reason().message);
  } catch (const nlohmann::json::exception& x) {
    return fail(errc::damaged, source.directory().string() + ": XGBoost's model is not as expected: " + x.what());
  }
}

expected<void> export_model(const serialization::checkpoint& source, const std::filesystem::path& path,
                            serialization::existing_file existing) {
  if (path.extension() != ".ubj" && path.extension() != ".json")
    return fail(errc::invalid_argument,
                path.string() + ": XGBoost's models are .ubj or .json: give a name that ends so");
  if (existing == serialization::existing_file::keep && std::filesystem::exists(path))
    return fail(errc::already_exists, path.string() + " is there already: choose another name, or have it replaced");
  auto stored = inference::read_model(source, model_tensor);
  if (!stored)
    return fail(std::move(stored.error()));
  try {
    auto model = booster{};
    model.load(*stored);
    auto bytes = model.save(path.extension().string().substr(1));
    return serialization::write_file_durably(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  } catch (const library_error& x) {
    return fail(errc::damaged, source.directory().string() + ": " + x.reason().message);
  }
}

} // namespace troupe::xgboost
