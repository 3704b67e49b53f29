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

boosting::loaded_model load(std::span<const std::byte> model) {
  auto loaded = std::make_shared<booster>();
  loaded->load(model);
  loaded->set("nthread", "1");
  return {width_of(*loaded), [loaded](std::span<const float> values, std::uint64_t rows) {
            auto found = loaded->predict(matrix{values, rows, 1}).values;
            return std::vector<float>{found.begin(), found.end()};
          }};
}

} // namespace

expected<std::vector<std::string>> feature_names(const serialization::checkpoint& source) {
  return boosting::feature_names(this_library, source);
}

expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source) {
  return boosting::load_predictor(this_library, source, load);
}

expected<void> export_model(const serialization::checkpoint& source, const std::filesystem::path& path,
                            serialization::existing_file existing) {
  if (path.extension() != ".ubj" && path.extension() != ".json")
    return fail(
        errc::invalid_argument,
        fmt::format("{}: XGBoost's models are .ubj or .json: give a name with one of these extensions", path.string()));
  return boosting::export_model(this_library, source, path, existing, [&path](const std::vector<std::byte>& stored) {
    auto model = booster{};
    model.load(stored);
    return model.save(path.extension().string().substr(1));
  });
}

} // namespace troupe::xgboost
