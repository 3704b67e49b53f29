#pragma once

#include <troupe/error.hpp>

#include <memory>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <string>
#include <string_view>

/// Makes and compares keys and X.509 certificates in memory.
namespace troupe::runtime {

/// A deleter that calls one of OpenSSL's functions.
template <auto Free>
struct freed_by {
  template <class T>
  void operator()(T* x) const {
    Free(x);
  }
};

using key_ptr = std::unique_ptr<EVP_PKEY, freed_by<EVP_PKEY_free>>;
using certificate_ptr = std::unique_ptr<X509, freed_by<X509_free>>;
using bio_ptr = std::unique_ptr<BIO, freed_by<BIO_free>>;

struct signing_authority {
  key_ptr key;
  certificate_ptr certificate;
};

enum class validity { valid, not_yet_valid, expired };

/// A new P-256 key.
[[nodiscard]] expected<key_ptr> make_key();

/// A new key and a certificate that it signs itself. A random number is appended to `name`, so that a certificate of
/// another authority with the same name is recognised as foreign.
[[nodiscard]] expected<signing_authority> make_authority(const std::string& name);

/// A certificate for servers and clients, signed by `issuer`. `alternative_names` is in OpenSSL's notation, such as
/// "DNS:localhost,IP:127.0.0.1".
[[nodiscard]] expected<certificate_ptr> make_certificate(EVP_PKEY* key, const signing_authority& issuer,
                                                         std::string_view name, const std::string& alternative_names);

[[nodiscard]] bool belongs_to(X509* certificate, EVP_PKEY* key);
[[nodiscard]] bool is_signed_by(X509* certificate, X509* authority);
[[nodiscard]] validity validity_of(const X509* certificate);

} // namespace troupe::runtime
