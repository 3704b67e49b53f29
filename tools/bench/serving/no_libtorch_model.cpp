#include "libtorch_model.hpp"

#include <troupe/error.hpp>

namespace bench {

predict::loaded_model load_libtorch_model(const troupe::serialization::checkpoint&) {
  throw troupe::exception{troupe::errc::unsatisfiable, "built without LibTorch"};
}

} // namespace bench
