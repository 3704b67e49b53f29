#include "booster.hpp"
#include "settings.hpp"

#include <troupe/boosting/stored_model.hpp>
#include <troupe/serialization/files/file_digest.hpp>

#include <memory>

namespace troupe::lightgbm {

expected<std::vector<std::string>> feature_names(const serialization::checkpoint& source) {
  return boosting::feature_names(this_library, source);
}

expected<inference::predictor_ptr> load_predictor(const serialization::checkpoint& source,
                                                  const std::filesystem::path& asked) {
  return boosting::load_predictor(this_library, source, [&asked](std::span<const std::byte> model) {
    auto file = value_or_throw(find_library(asked));
    auto functions = value_or_throw(library::open(file));
    auto text = std::string{reinterpret_cast<const char*>(model.data()), model.size()};
    auto loaded = std::make_shared<const booster>(functions, text);
    return boosting::loaded_model{loaded->features(),
                                  [loaded](std::span<const float> values, std::uint64_t rows) {
                                    auto found = loaded->predict(values, rows, false).values;
                                    std::vector<float> result(found.size());
                                    for (std::size_t i = 0; i < found.size(); ++i)
                                      result[i] = static_cast<float>(found[i]);
                                    return result;
                                  },
                                  "LightGBM " + value_or_throw(serialization::describe_file(file))};
  });
}

expected<void> export_model(const serialization::checkpoint& source, const std::filesystem::path& path,
                            serialization::existing_file existing) {
  return boosting::export_model(this_library, source, path, existing, [](std::vector<std::byte> text) { return text; });
}

} // namespace troupe::lightgbm
