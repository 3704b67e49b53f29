#include "custom_functions.hpp"

#include <troupe/lightgbm.hpp>

using namespace troupe;

int main(int argc, char** argv) {
  return testing::run_custom(argc, argv, lightgbm::training_config{}, lightgbm::training_function,
                             lightgbm::make_trainer);
}
