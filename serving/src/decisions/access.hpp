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

/// Whether a page may ask a server without a token: a browser tells where the page came from in `Origin`, and in
/// `Sec-Fetch-Site` whether it is another site. Other clients send neither.
[[nodiscard]] bool is_local_page(std::string_view origin, std::string_view fetch_site);

/// Whether clients can send a text as a token: letters, digits and -._~+/, then any number of = (RFC 6750).
[[nodiscard]] bool is_token_text(std::string_view text) noexcept;

} // namespace troupe::serving
