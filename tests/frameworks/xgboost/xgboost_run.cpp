#include "boosting_run.hpp"

#include <troupe/xgboost.hpp>

using namespace troupe;

int main(int argc, char** argv) {
  auto train = xgboost::training_function("train", testing::make_sets);
  auto program = app{argc, argv, {train}};
  xgboost::training_config config;
  config.deadline = std::chrono::seconds{60};
  return testing::run_boosting(argc, argv, config,
                               [&](const auto& all) { return xgboost::make_trainer(program, train, all); });
}
