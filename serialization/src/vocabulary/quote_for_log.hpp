#pragma once

#include <string>
#include <string_view>

namespace troupe::serialization {

/// Formats a name from an untrusted file for an error message: quoted, without control characters, at most a line long.
[[nodiscard]] std::string quote_for_log(std::string_view name);

} // namespace troupe::serialization
