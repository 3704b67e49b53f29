#pragma once

#include <troupe/data/column.hpp>
#include <troupe/inference/predictor.hpp>

#include <vector>

namespace troupe::inference {

/// A predictor and the columns that it takes for a row.
struct loaded_model {
  predictor_ptr predictor;
  std::vector<data::column_spec> inputs;
};

} // namespace troupe::inference
