#include <troupe/boosting/stored_model.hpp>

#include <troupe/data/feature_rows.hpp>
#include <troupe/inference/model_storage.hpp>
#include <troupe/serialization/files/durable_file.hpp>

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <memory>
#include <utility>

namespace troupe::boosting {

namespace {

class model_predictor final : public inference::predictor {
 public:
  model_predictor(model_inputs inputs, loaded_model model) : inputs_(std::move(inputs)), model_(std::move(model)) {
    // A prediction for a row of missing values shows how many outputs the model has.
    auto row = std::vector<float>(model_.features, std::numeric_limits<float>::quiet_NaN());
    auto outputs = model_.predict(row, 1).size();
    if (outputs == 1)
      outputs_ = {"prediction"};
    for (std::size_t i = 0; outputs > 1 && i < outputs; ++i)
      outputs_.push_back(fmt::format("prediction_{}", i));
  }

  const std::vector<std::string>& outputs() const noexcept override { return outputs_; }
  std::string library() const override { return model_.library; }

  expected<void> predict(data::batch& rows, std::span<float> out) override {
    if (inputs_.preprocessor)
      TROUPE_TRY(inputs_.preprocessor->transform(rows));
    TROUPE_TRY(auto values, data::feature_rows(rows, inputs_.columns, inputs_.categories));
    try {
      auto found = model_.predict(values, rows.size());
      if (found.size() != out.size())
        return fail(errc::mismatch,
                    fmt::format("the model returned {} numbers for {} rows", found.size(), rows.size()));
      std::ranges::copy(found, out.begin());
      return {};
    } catch (const exception& x) {
      return fail(errc::mismatch, x.reason().message);
    }
  }

 private:
  model_inputs inputs_;
  loaded_model model_;
  std::vector<std::string> outputs_;
};

/// Text as a JSON string, or as a list of bytes if it is not UTF-8, which JSON strings require.
nlohmann::json text_json(const std::string& text) {
  auto result = nlohmann::json(text);
  try {
    (void)result.dump();
    return result;
  } catch (const nlohmann::json::type_error&) {
    return std::vector<std::uint8_t>(text.begin(), text.end());
  }
}

/// Converts an exception of a library; `errc::user_error` means that it cannot read the model.
error of_model(const serialization::checkpoint& source, const exception& x) {
  if (x.reason().code != errc::user_error)
    return x.reason();
  return {errc::damaged, fmt::format("{}: {}", source.directory().string(), x.reason().message)};
}

} // namespace

expected<std::vector<std::string>> feature_names(const tree_library& library, const serialization::checkpoint& source) {
  try {
    if (source.find(library.model_tensor()))
      return nlohmann::json::parse(source.content().values_json)
          .at(library.key)
          .at("features")
          .get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    // Reported below.
  }
  return fail(errc::not_found, fmt::format("{} does not list the columns on which a model of {} was trained",
                                           source.directory().string(), library.name));
}

nlohmann::json json_of(const data::category_texts& texts) {
  auto result = nlohmann::json::object();
  for (const auto& [column, all] : texts) {
    auto& list = result[column] = nlohmann::json::array();
    for (const auto& text : all)
      list.push_back(text_json(text));
  }
  return result;
}

data::category_texts category_texts_of(const nlohmann::json& json) {
  data::category_texts result;
  for (const auto& [column, list] : json.items())
    for (auto& texts = result[column]; const auto& each : list) {
      if (each.is_string()) {
        texts.push_back(each.get<std::string>());
        continue;
      }
      auto bytes = each.get<std::vector<std::uint8_t>>();
      texts.emplace_back(bytes.begin(), bytes.end());
    }
  return result;
}

expected<model_inputs> inputs_of(const tree_library& library, const serialization::checkpoint& source) {
  TROUPE_TRY(auto columns, feature_names(library, source));
  auto result = model_inputs{std::move(columns)};
  try {
    auto kept = nlohmann::json::parse(source.content().values_json).at(library.key);
    if (auto found = kept.find("categories"); found != kept.end())
      result.categories = data::known_categories{category_texts_of(*found)};
    if (!kept.contains("preprocessed"))
      return result;
  } catch (const nlohmann::json::exception& x) {
    return fail(errc::damaged,
                fmt::format("{}: the categories cannot be read: {}", source.directory().string(), x.what()));
  }
  TROUPE_TRY(auto preprocessor, data::load_preprocessor(source, library.key));
  result.preprocessor = std::move(preprocessor);
  return result;
}

inference::predictor_ptr make_predictor(model_inputs inputs, loaded_model model) {
  return std::make_unique<model_predictor>(std::move(inputs), std::move(model));
}

expected<inference::predictor_ptr>
load_predictor(const tree_library& library, const serialization::checkpoint& source,
               const std::function<loaded_model(std::span<const std::byte> model)>& load) {
  TROUPE_TRY(auto model, inference::read_model(source, library.model_tensor()));
  TROUPE_TRY(auto inputs, inputs_of(library, source));
  try {
    return make_predictor(std::move(inputs), load(model));
  } catch (const exception& x) {
    return fail(of_model(source, x));
  }
}

expected<void> export_model(const tree_library& library, const serialization::checkpoint& source,
                            const std::filesystem::path& path, serialization::existing_file existing,
                            const std::function<std::vector<std::byte>(std::vector<std::byte> model)>& convert) {
  if (existing == serialization::existing_file::keep && std::filesystem::exists(path))
    return fail(errc::already_exists,
                fmt::format("{} already exists: choose another name, or allow replacing it", path.string()));
  TROUPE_TRY(auto model, inference::read_model(source, library.model_tensor()));
  try {
    auto bytes = convert(std::move(model));
    return serialization::write_file_durably(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  } catch (const exception& x) {
    return fail(of_model(source, x));
  }
}

} // namespace troupe::boosting
