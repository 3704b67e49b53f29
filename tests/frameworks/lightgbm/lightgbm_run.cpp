#include "boosting_run.hpp"

#include <troupe/lightgbm.hpp>

using namespace troupe;

int main(int argc, char** argv) {
  auto train = lightgbm::training_function("train", testing::make_sets);
  auto program = app{argc, argv, {train}};
  return testing::run_boosting(argc, argv, lightgbm::training_config{},
                               [&](const auto& config) { return lightgbm::make_trainer(program, train, config); });
}
