#include "net/keys/certificates.hpp"

#include <fmt/format.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <arpa/inet.h>
#include <array>
#include <cctype>
#include <cstdint>
#include <ctime>
#include <tuple>
#include <utility>

namespace troupe::runtime {

namespace {

using number_ptr = std::unique_ptr<BIGNUM, freed_by<BN_free>>;
using extension_ptr = std::unique_ptr<X509_EXTENSION, freed_by<X509_EXTENSION_free>>;

constexpr long seconds_a_day = 24 * 60 * 60;
constexpr int authority_days = 3650;

// The extended key usages of nodes and drivers: arcs of random UUIDs, which need no registration (ITU-T X.667).
constexpr auto node_usage = "2.25.63102919829839573903326766098416954393";
constexpr auto driver_usage = "2.25.183237458710725813002306005785609941764";

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

bool set_validity(X509* certificate, int valid_days) {
  return X509_gmtime_adj(X509_getm_notBefore(certificate), -backdated_days * seconds_a_day) != nullptr &&
         X509_gmtime_adj(X509_getm_notAfter(certificate), valid_days * seconds_a_day) != nullptr;
}

std::string usages_of(certificate_role role) {
  switch (role) {
  case certificate_role::none:
    return "serverAuth,clientAuth";
  case certificate_role::node:
    return fmt::format("serverAuth,{}", node_usage);
  case certificate_role::driver:
    return fmt::format("clientAuth,{}", driver_usage);
  case certificate_role::both:
    return fmt::format("serverAuth,clientAuth,{},{}", node_usage, driver_usage);
  }
  return {};
}

bool set_extensions(X509* certificate, X509* issuer, const certificate_text& text, certificate_kind kind) {
  auto add = [&](int id, const char* value) { return add_extension(certificate, issuer, id, value); };
  if (kind == certificate_kind::authority)
    return add(NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
           add(NID_key_usage, "critical,keyCertSign,cRLSign") && add(NID_subject_key_identifier, "hash");
  return add(NID_basic_constraints, "critical,CA:FALSE") && add(NID_key_usage, "critical,digitalSignature") &&
         add(NID_ext_key_usage, usages_of(text.role).c_str()) && add(NID_subject_key_identifier, "hash") &&
         add(NID_authority_key_identifier, "keyid") && add(NID_subject_alt_name, text.alternative_names.c_str());
}

/// `issuer` is null for a self-signed certificate.
expected<certificate_ptr> make_certificate(EVP_PKEY* key, const signing_authority* issuer,
                                           const certificate_text& text) {
  certificate_ptr result{X509_new()};
  auto* issuer_certificate = issuer ? issuer->certificate.get() : result.get();
  auto* issuer_key = issuer ? issuer->key.get() : key;
  auto kind = issuer ? certificate_kind::leaf : certificate_kind::authority;
  constexpr long version_3 = 2;
  if (!result || X509_set_version(result.get(), version_3) != 1 || !set_random_serial(result.get()) ||
      !set_name(result.get(), text.name) ||
      X509_set_issuer_name(result.get(), X509_get_subject_name(issuer_certificate)) != 1 ||
      !set_validity(result.get(), text.valid_days) || X509_set_pubkey(result.get(), key) != 1 ||
      !set_extensions(result.get(), issuer_certificate, text, kind) ||
      X509_sign(result.get(), issuer_key, EVP_sha256()) == 0)
    return fail(openssl_error(fmt::format("cannot make the certificate of {}", text.name)));
  return result;
}

using time_ptr = std::unique_ptr<ASN1_TIME, freed_by<ASN1_TIME_free>>;
using integer_ptr = std::unique_ptr<ASN1_INTEGER, freed_by<ASN1_INTEGER_free>>;
using revocation_ptr = std::unique_ptr<X509_REVOKED, freed_by<X509_REVOKED_free>>;
using usage_ptr = std::unique_ptr<EXTENDED_KEY_USAGE, freed_by<EXTENDED_KEY_USAGE_free>>;
using names_ptr = std::unique_ptr<GENERAL_NAMES, freed_by<GENERAL_NAMES_free>>;

bool add_revoked(X509_CRL* list, const std::string& serial, ASN1_TIME* when) {
  number_ptr number;
  if (BIGNUM* raw = nullptr; BN_hex2bn(&raw, serial.c_str()) > 0)
    number.reset(raw);
  integer_ptr value{number ? BN_to_ASN1_INTEGER(number.get(), nullptr) : nullptr};
  revocation_ptr entry{X509_REVOKED_new()};
  if (!value || !entry || X509_REVOKED_set_serialNumber(entry.get(), value.get()) != 1 ||
      X509_REVOKED_set_revocationDate(entry.get(), when) != 1 || X509_CRL_add0_revoked(list, entry.get()) != 1)
    return false;
  // The list owns it now.
  std::ignore = entry.release();
  return true;
}

std::string text_of(const ASN1_OBJECT* object) {
  std::array<char, 128> text{};
  OBJ_obj2txt(text.data(), text.size(), object, 1);
  return text.data();
}

/// An address as users write it.
std::string address_text(const ASN1_OCTET_STRING* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const auto family = ASN1_STRING_length(address) == sizeof(in_addr) ? AF_INET : AF_INET6;
  inet_ntop(family, ASN1_STRING_get0_data(address), text.data(), text.size());
  return text.data();
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
  TROUPE_TRY(auto certificate,
             make_certificate(key.get(), nullptr, {fmt::format("{} {}", name, number), {}, {}, authority_days}));
  return signing_authority{std::move(key), std::move(certificate)};
}

expected<certificate_ptr> make_certificate(EVP_PKEY* key, const signing_authority& issuer,
                                           const certificate_text& text) {
  return make_certificate(key, &issuer, text);
}

expected<revocation_list_ptr> make_revocation_list(const signing_authority& issuer,
                                                   const std::vector<std::string>& serials) {
  revocation_list_ptr result{X509_CRL_new()};
  time_ptr now{X509_gmtime_adj(nullptr, -backdated_days * seconds_a_day)};
  constexpr long version_2 = 1;
  auto is_made = result && now && X509_CRL_set_version(result.get(), version_2) == 1 &&
                 X509_CRL_set_issuer_name(result.get(), X509_get_subject_name(issuer.certificate.get())) == 1 &&
                 X509_CRL_set1_lastUpdate(result.get(), now.get()) == 1 &&
                 X509_CRL_set1_nextUpdate(result.get(), X509_get0_notAfter(issuer.certificate.get())) == 1;
  for (const auto& each : serials)
    is_made = is_made && add_revoked(result.get(), each, now.get());
  if (!is_made || X509_CRL_sort(result.get()) != 1 || X509_CRL_sign(result.get(), issuer.key.get(), EVP_sha256()) == 0)
    return fail(openssl_error("cannot make the list of revoked certificates"));
  return result;
}

certificate_role role_of(const X509* certificate) {
  usage_ptr usages{
      static_cast<EXTENDED_KEY_USAGE*>(X509_get_ext_d2i(certificate, NID_ext_key_usage, nullptr, nullptr))};
  ERR_clear_error();
  auto result = 0U;
  for (int i = 0; usages && i < sk_ASN1_OBJECT_num(usages.get()); ++i) {
    const auto usage = text_of(sk_ASN1_OBJECT_value(usages.get(), i));
    if (usage == node_usage)
      result |= static_cast<unsigned>(certificate_role::node);
    if (usage == driver_usage)
      result |= static_cast<unsigned>(certificate_role::driver);
  }
  return static_cast<certificate_role>(result);
}

std::string hexadecimal(const ASN1_INTEGER* value) {
  number_ptr number{ASN1_INTEGER_to_BN(value, nullptr)};
  char* digits = number ? BN_bn2hex(number.get()) : nullptr;
  std::string result{digits == nullptr ? "" : digits};
  OPENSSL_free(digits);
  return result;
}

std::string serial_of(const X509* certificate) {
  return hexadecimal(X509_get0_serialNumber(certificate));
}

std::string name_of(const X509* certificate) {
  std::array<char, 128> text{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, text.data(), text.size());
  std::string result{text.data()};
  for (auto& each : result)
    if (std::isalnum(static_cast<unsigned char>(each)) == 0 &&
        std::string_view{".:-_ "}.find(each) == std::string::npos)
      each = '?';
  return result;
}

std::vector<std::string> further_names_of(const X509* certificate) {
  names_ptr names{static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr))};
  ERR_clear_error();
  std::vector<std::string> result;
  for (int i = 1; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const auto* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_DNS)
      result.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(name->d.dNSName)),
                          static_cast<std::size_t>(ASN1_STRING_length(name->d.dNSName)));
    else if (name->type == GEN_IPADD)
      result.push_back(address_text(name->d.iPAddress));
  }
  return result;
}

std::chrono::system_clock::time_point expiry_of(const X509* certificate) {
  std::tm parts{};
  ASN1_TIME_to_tm(X509_get0_notAfter(certificate), &parts);
  return std::chrono::system_clock::from_time_t(::timegm(&parts));
}

bool is_revoked(const X509* certificate, X509_CRL* list) {
  X509_REVOKED* entry = nullptr;
  return list != nullptr && X509_CRL_get0_by_serial(list, &entry, X509_get0_serialNumber(certificate)) == 1;
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

bool is_signed_by(X509_CRL* list, X509* authority) {
  auto result = X509_NAME_cmp(X509_CRL_get_issuer(list), X509_get_subject_name(authority)) == 0 &&
                X509_CRL_verify(list, X509_get0_pubkey(authority)) == 1;
  ERR_clear_error();
  return result;
}

validity validity_of(const X509* certificate) {
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0)
    return validity::not_yet_valid;
  return X509_cmp_current_time(X509_get0_notAfter(certificate)) > 0 ? validity::valid : validity::expired;
}

} // namespace troupe::runtime
