#pragma once

#include <string>
#include <string_view>

namespace troupe::serving {

/// Whether two texts are equal, in a time that depends on the length of `given` only.
[[nodiscard]] bool equals_secret(std::string_view given, std::string_view secret) noexcept;

/// Whether a value of the header `Authorization` carries the token.
[[nodiscard]] bool is_authorized(std::string_view authorization, std::string_view token) noexcept;

/// Whether a value of the header `Host` names this machine as clients on it do: a page of a foreign name that leads to
/// 127.0.0.1 (DNS rebinding) sends its own name.
[[nodiscard]] bool is_local_name(std::string_view host_header);

} // namespace troupe::serving
