#pragma once

#include <troupe/error.hpp>

#include <chrono>
#include <string>

namespace troupe {

/// Reads a time such as "90s", "30m", "2h", "1d" or "1h30m"; a number alone is seconds. At most 10 years.
[[nodiscard]] expected<std::chrono::milliseconds> parse_duration(const std::string& text);

} // namespace troupe
