#include "library.hpp"

#include <troupe/lightgbm.hpp>

#include <fmt/format.h>

#include <utility>

namespace trees {

using namespace troupe;

library lightgbm_library(boosting::make_training_sets make) {
  return {lightgbm::training_function("train-lightgbm", std::move(make)),
          [](const app& program, const function& train, const request& asked) {
            auto config = config_of<lightgbm::training_config>(asked);
            config.library = asked.lightgbm_library;
            // Workers on this host would fail, so report a missing library now.
            if (config.trainer.cluster.is_embedded())
              if (auto found = lightgbm::find_library(config.library); !found)
                throw exception{found.error().code,
                                fmt::format("{}; or use --lightgbm-library PATH", found.error().message)};
            return lightgbm::make_trainer(program, train, config);
          },
          [](const serialization::checkpoint& source, const std::filesystem::path& path) {
            return lightgbm::export_model(source, path);
          }};
}

} // namespace trees
