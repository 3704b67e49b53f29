#pragma once

#include <string>
#include <system_error>

namespace troupe::collectives::tcp {

/// The text of an error number: "Connection refused".
[[nodiscard]] inline std::string text_of(int code) {
  return std::generic_category().message(code);
}

} // namespace troupe::collectives::tcp
