#pragma once

#include <string>
#include <string_view>

namespace troupe::serialization {

/// A name out of a file that nobody vouches for, as it may stand in an error message: in quotes, without control
/// characters, and not longer than a line.
[[nodiscard]] std::string quote_for_log(std::string_view name);

} // namespace troupe::serialization
