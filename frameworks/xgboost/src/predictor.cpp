#include "booster.hpp"
#include "settings.hpp"

#include <troupe/boosting/stored_model.hpp>

#include <filesystem>
#include <fmt/format.h>
#include <memory>

namespace troupe::xgboost {

namespace {

/// The model's number of features.
std::uint64_t width_of(const booster& model) {
  auto text = model.save("json");
  const auto* begin = reinterpret_cast<const char*>(text.data());
  try {
    auto content = nlohmann::json::parse(begin, begin + text.size());
    return std::stoull(content.at("learner").at("learner_model_param").at("num_feature").get<std::string>());
  } catch (const nlohmann::json::exception& x) {
    throw library_error{fmt::format("XGBoost's model has an unexpected format: {}", x.what())};
  }
}

library_ptr opened(const std::filesystem::path& asked) {
  return value_or_throw(library::open(value_or_throw(find_library(asked))));
}

boosting::loaded_model load(const library_ptr& functions, std::span<const std::byte> model) {
  auto loaded = std::make_shared<booster>(functions);
  loaded->load(model);
  loaded->set("nthread", "1");
  return {width_of(*loaded),
          [functions, loaded](std::span<const float> values, std::uint64_t rows) {
            auto found = loaded->predict(matrix{functions, values, rows, 1}).values;
            return std::vector<float>{found.begin(), found.end()};
          },
          "XGBoost " + functions->version().text()};
}

} // namespace

expected<std::vector<std::string>> feature_names(const serialization::checkpoint& source) {
  return boosting::feature_names(this_library, source);
}

expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                  const std::filesystem::path& asked) {
  return boosting::load_predictor(this_library, source,
                                  [&asked](std::span<const std::byte> model) { return load(opened(asked), model); });
}

expected<void> export_model(const serialization::checkpoint& source, const std::filesystem::path& path,
                            serialization::existing_file existing, const std::filesystem::path& asked) {
  if (path.extension() != ".ubj" && path.extension() != ".json")
    return fail(
        errc::invalid_argument,
        fmt::format("{}: XGBoost's models are .ubj or .json: give a name with one of these extensions", path.string()));
  return boosting::export_model(this_library, source, path, existing, [&](std::vector<std::byte> stored) {
    if (path.extension() == ".ubj")
      return stored;
    auto model = booster{opened(asked)};
    model.load(stored);
    return model.save("json");
  });
}

} // namespace troupe::xgboost
