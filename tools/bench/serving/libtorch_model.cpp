#include "libtorch_model.hpp"

#include <mnist/prediction.hpp>

#include <malloc.h>

namespace bench {

predict::loaded_model load_libtorch_model(const troupe::serialization::checkpoint& source) {
  // As troupe-serve-libtorch does.
  ::mallopt(M_MMAP_THRESHOLD, 32 << 20);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
  return mnist::load_model(source);
}

} // namespace bench
