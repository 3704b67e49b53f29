#pragma once

#include "library.hpp"

namespace troupe::tensorflow {

/// The library that the framework has opened in this process. Throws `exception` with `errc::user_error` without it.
[[nodiscard]] library_ptr process_library();

} // namespace troupe::tensorflow
