#pragma once

#include <cstdint>

namespace troupe::actors {

/// Whether users have to do something about what they are told.
enum class severity : std::uint8_t { note, warning };

} // namespace troupe::actors
