#include "libtorch_model.hpp"

#include <mnist/prediction.hpp>

#include <utility>

namespace bench {

predict::loaded_model load_libtorch_model(const troupe::serialization::checkpoint& source) {
  auto model = mnist::load_model(source);
  return {std::move(model.predictor), std::move(model.inputs)};
}

} // namespace bench
