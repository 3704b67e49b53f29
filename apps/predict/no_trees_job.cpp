#include "jobs.hpp"

namespace predict {

troupe::inference::prediction_job make_trees_job(const troupe::inference::prediction_request&) {
  throw troupe::failure{troupe::errc::unsatisfiable,
                        "this program was built without XGBoost: install libxgboost-dev, and build it again"};
}

} // namespace predict
