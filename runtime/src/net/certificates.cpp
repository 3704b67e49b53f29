#include "net/certificates.hpp"

#include <fmt/format.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <array>
#include <cstdint>
#include <utility>

namespace troupe::runtime {

namespace {

using number_ptr = std::unique_ptr<BIGNUM, freed_by<BN_free>>;
using extension_ptr = std::unique_ptr<X509_EXTENSION, freed_by<X509_EXTENSION_free>>;

constexpr long seconds_a_day = 24 * 60 * 60;
constexpr int valid_days = 3650;

/// A new certificate is valid from this many days ago, so that hosts whose clocks are behind ours accept it.
constexpr int backdated_days = 1;

/// OpenSSL's description of its last failure. Clears OpenSSL's error queue.
error openssl_error(std::string_view what) {
  std::array<char, 256> text{};
  if (auto code = ERR_get_error(); code != 0)
    ERR_error_string_n(code, text.data(), text.size());
  ERR_clear_error();
  return {errc::internal, fmt::format("{}: OpenSSL failed: {}", what, text.data())};
}

enum class certificate_kind { authority, leaf };

bool add_extension(X509* certificate, X509* issuer, int id, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  extension_ptr extension{X509V3_EXT_conf_nid(nullptr, &context, id, value)};
  return extension && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool set_random_serial(X509* certificate) {
  number_ptr number{BN_new()};
  // 159 bits with the highest one set: a positive number within the 20 bytes that RFC 5280 allows.
  return number && BN_rand(number.get(), 159, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
         BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool set_name(X509* certificate, std::string_view name) {
  // X.509 allows 64 characters here. Peers check the alternative name.
  auto text = std::string{name.substr(0, 64)};
  return X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(text.data()), static_cast<int>(text.size()),
                                    -1, 0) == 1;
}

bool set_validity(X509* certificate) {
  return X509_gmtime_adj(X509_getm_notBefore(certificate), -backdated_days * seconds_a_day) != nullptr &&
         X509_gmtime_adj(X509_getm_notAfter(certificate), valid_days * seconds_a_day) != nullptr;
}

bool set_extensions(X509* certificate, X509* issuer, certificate_kind kind, const std::string& alternative_names) {
  auto add = [&](int id, const char* value) { return add_extension(certificate, issuer, id, value); };
  if (kind == certificate_kind::authority)
    return add(NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
           add(NID_key_usage, "critical,keyCertSign,cRLSign") && add(NID_subject_key_identifier, "hash");
  return add(NID_basic_constraints, "critical,CA:FALSE") && add(NID_key_usage, "critical,digitalSignature") &&
         add(NID_ext_key_usage, "serverAuth,clientAuth") && add(NID_subject_key_identifier, "hash") &&
         add(NID_authority_key_identifier, "keyid") && add(NID_subject_alt_name, alternative_names.c_str());
}

/// `issuer` is null for a self-signed certificate.
expected<certificate_ptr> make_certificate(EVP_PKEY* key, const signing_authority* issuer, std::string_view name,
                                           const std::string& alternative_names) {
  certificate_ptr result{X509_new()};
  auto* issuer_certificate = issuer ? issuer->certificate.get() : result.get();
  auto* issuer_key = issuer ? issuer->key.get() : key;
  auto kind = issuer ? certificate_kind::leaf : certificate_kind::authority;
  constexpr long version_3 = 2;
  if (!result || X509_set_version(result.get(), version_3) != 1 || !set_random_serial(result.get()) ||
      !set_name(result.get(), name) ||
      X509_set_issuer_name(result.get(), X509_get_subject_name(issuer_certificate)) != 1 ||
      !set_validity(result.get()) || X509_set_pubkey(result.get(), key) != 1 ||
      !set_extensions(result.get(), issuer_certificate, kind, alternative_names) ||
      X509_sign(result.get(), issuer_key, EVP_sha256()) == 0)
    return fail(openssl_error(fmt::format("cannot make the certificate of {}", name)));
  return result;
}

} // namespace

expected<key_ptr> make_key() {
  key_ptr key{EVP_EC_gen("P-256")};
  if (!key)
    return fail(openssl_error("cannot make a key"));
  return key;
}

expected<signing_authority> make_authority(const std::string& name) {
  std::uint32_t number = 0;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(&number), sizeof(number)) != 1)
    return fail(openssl_error("cannot make a random number"));
  TROUPE_TRY(auto key, make_key());
  TROUPE_TRY(auto certificate, make_certificate(key.get(), nullptr, fmt::format("{} {}", name, number), {}));
  return signing_authority{std::move(key), std::move(certificate)};
}

expected<certificate_ptr> make_certificate(EVP_PKEY* key, const signing_authority& issuer, std::string_view name,
                                           const std::string& alternative_names) {
  return make_certificate(key, &issuer, name, alternative_names);
}

bool belongs_to(X509* certificate, EVP_PKEY* key) {
  auto result = X509_check_private_key(certificate, key) == 1;
  ERR_clear_error();
  return result;
}

bool is_signed_by(X509* certificate, X509* authority) {
  auto result = X509_check_issued(authority, certificate) == X509_V_OK &&
                X509_verify(certificate, X509_get0_pubkey(authority)) == 1;
  ERR_clear_error();
  return result;
}

validity validity_of(const X509* certificate) {
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0)
    return validity::not_yet_valid;
  return X509_cmp_current_time(X509_get0_notAfter(certificate)) > 0 ? validity::valid : validity::expired;
}

} // namespace troupe::runtime
