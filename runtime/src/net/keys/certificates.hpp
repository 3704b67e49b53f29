#pragma once

#include <troupe/error.hpp>
#include <troupe/runtime/keys.hpp>

#include <chrono>
#include <memory>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <string>
#include <vector>

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
using revocation_list_ptr = std::unique_ptr<X509_CRL, freed_by<X509_CRL_free>>;
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

/// A certificate's claims about its owner.
struct certificate_text {
  std::string name;
  /// In OpenSSL's notation, such as "DNS:localhost,IP:127.0.0.1".
  std::string alternative_names;
  /// `none` makes one for both ends of a connection within a machine.
  certificate_role role = certificate_role::none;
  int valid_days = 0;
};

/// Signed by `issuer`. Roles are extended key usages: one of our own for each role, and TLS's for servers (nodes) and
/// clients (drivers), which OpenSSL also checks.
[[nodiscard]] expected<certificate_ptr> make_certificate(EVP_PKEY* key, const signing_authority& issuer,
                                                         const certificate_text& text);

/// A list of revoked certificates. It is valid as long as the authority: an old list is better than none.
[[nodiscard]] expected<revocation_list_ptr> make_revocation_list(const signing_authority& issuer,
                                                                 const std::vector<std::string>& serials);

[[nodiscard]] certificate_role role_of(const X509* certificate);
[[nodiscard]] std::string hexadecimal(const ASN1_INTEGER* number);
[[nodiscard]] std::string serial_of(const X509* certificate);
/// The common name, with characters that could confuse a log replaced.
[[nodiscard]] std::string name_of(const X509* certificate);
/// Of a host's certificate: its names and addresses without the first.
[[nodiscard]] std::vector<std::string> further_names_of(const X509* certificate);
[[nodiscard]] std::chrono::system_clock::time_point expiry_of(const X509* certificate);
[[nodiscard]] bool is_revoked(const X509* certificate, X509_CRL* list);

[[nodiscard]] bool belongs_to(X509* certificate, EVP_PKEY* key);
[[nodiscard]] bool is_signed_by(X509* certificate, X509* authority);
[[nodiscard]] bool is_signed_by(X509_CRL* list, X509* authority);
[[nodiscard]] validity validity_of(const X509* certificate);

} // namespace troupe::runtime
