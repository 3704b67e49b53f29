#include "custom_functions.hpp"

#include <troupe/xgboost.hpp>

using namespace troupe;

int main(int argc, char** argv) {
  xgboost::training_config config;
  config.deadline = std::chrono::seconds{60};
  return testing::run_custom(argc, argv, config, xgboost::training_function, xgboost::make_trainer);
}
