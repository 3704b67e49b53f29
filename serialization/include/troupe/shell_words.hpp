#pragma once

#include <string>
#include <string_view>

namespace troupe {

/// A word as a POSIX shell reads it back: in quotes, if it needs them.
[[nodiscard]] std::string shell_quoted(std::string_view word);

} // namespace troupe
