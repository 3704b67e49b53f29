#include "jobs.hpp"

#include <troupe/xgboost.hpp>

namespace predict {

using namespace troupe;

trees_model load_xgboost_model(const serialization::checkpoint& source) {
  return {value_or_throw(xgboost::load_predictor(source)), value_or_throw(xgboost::feature_names(source))};
}

} // namespace predict
