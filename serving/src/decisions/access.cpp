#include "decisions/access.hpp"

#include <troupe/runtime/keys.hpp>

#include <algorithm>
#include <cctype>
#include <openssl/crypto.h>
#include <openssl/sha.h>

namespace troupe::serving {

bool equals_secret(std::string_view given, std::string_view secret) noexcept {
  // Digests have one length, so neither the length of the secret nor the place of a difference shows in the time.
  unsigned char left[SHA256_DIGEST_LENGTH];
  unsigned char right[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(given.data()), given.size(), left);
  SHA256(reinterpret_cast<const unsigned char*>(secret.data()), secret.size(), right);
  return CRYPTO_memcmp(left, right, sizeof left) == 0;
}

bool is_authorized(std::string_view authorization, std::string_view token) noexcept {
  constexpr auto scheme = std::string_view{"bearer "};
  const auto begins = authorization.size() > scheme.size() &&
                      std::equal(scheme.begin(), scheme.end(), authorization.begin(), [](char want, char is) {
                        return want == std::tolower(static_cast<unsigned char>(is));
                      });
  return begins && equals_secret(authorization.substr(scheme.size()), token);
}

bool is_local_name(std::string_view host_header) {
  auto name = host_header;
  if (name.starts_with('[')) {
    const auto end = name.find(']');
    return end != std::string_view::npos && runtime::is_loopback(name.substr(1, end - 1));
  }
  name = name.substr(0, name.find(':'));
  return runtime::is_loopback(name);
}

bool is_local_page(std::string_view origin, std::string_view fetch_site) {
  if (fetch_site == "cross-site")
    return false;
  const auto scheme_end = origin.find("://");
  return origin.empty() || (scheme_end != std::string_view::npos && is_local_name(origin.substr(scheme_end + 3)));
}

bool is_token_text(std::string_view text) noexcept {
  const auto end = std::min(text.find('='), text.size());
  const auto is_allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           std::string_view{"-._~+/"}.find(c) != std::string_view::npos;
  };
  return end > 0 && std::ranges::all_of(text.substr(0, end), is_allowed) &&
         text.find_first_not_of('=', end) == std::string_view::npos;
}

} // namespace troupe::serving
