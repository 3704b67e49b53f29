#include "jobs.hpp"

namespace predict {

trees_model load_xgboost_model(const troupe::serialization::checkpoint&) {
  throw troupe::exception{troupe::errc::unsatisfiable,
                          "this program was built without XGBoost: install libxgboost-dev and build it again"};
}

} // namespace predict
