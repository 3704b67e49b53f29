#include "library.hpp"

#include <troupe/xgboost.hpp>

#include <utility>

namespace trees {

using namespace troupe;

std::optional<library> xgboost_library(boosting::make_training_sets make) {
  return library{xgboost::training_function("train", std::move(make)),
                 [](const app& program, const function& train, const request& asked) {
                   return xgboost::make_trainer(program, train, config_of<xgboost::training_config>(asked));
                 },
                 [](const serialization::checkpoint& source, const std::filesystem::path& path) {
                   return xgboost::export_model(source, path);
                 }};
}

} // namespace trees
