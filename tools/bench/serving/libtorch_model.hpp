#pragma once

#include <predict/models.hpp>

namespace bench {

/// Loads a checkpoint of mnist. Throws `exception`, also if this program is built without LibTorch.
[[nodiscard]] predict::loaded_model load_libtorch_model(const troupe::serialization::checkpoint& source);

} // namespace bench
