#include "library.hpp"

#include <troupe/xgboost.hpp>

#include <utility>

namespace trees {

using namespace troupe;

library xgboost_library(boosting::make_training_sets make) {
  return {xgboost::training_function("train", std::move(make)),
          [](const app& program, const function& train, const request& asked) {
            auto config = config_of<xgboost::training_config>(asked);
            // Workers on this host would fail, so report a missing library now.
            if (config.trainer.cluster.is_embedded())
              (void)value_or_throw(xgboost::find_library());
            return xgboost::make_trainer(program, train, config);
          },
          [](const serialization::checkpoint& source, const std::filesystem::path& path) {
            return xgboost::export_model(source, path);
          }};
}

} // namespace trees
