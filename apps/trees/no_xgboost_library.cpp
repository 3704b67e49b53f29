#include "library.hpp"

namespace trees {

std::optional<library> xgboost_library(troupe::boosting::make_training_sets) {
  return std::nullopt;
}

} // namespace trees
