#pragma once

#include <troupe/error.hpp>

#include <string>
#include <string_view>

/// Bytes in JSON texts.
namespace troupe::runtime {

[[nodiscard]] std::string to_base64(std::string_view bytes);

/// Fails with `errc::invalid_argument` for what is none.
[[nodiscard]] expected<std::string> from_base64(std::string_view text);

} // namespace troupe::runtime
