#pragma once

#include "net/keys/certificates.hpp"

#include <troupe/runtime/keys.hpp>

#include <filesystem>
#include <string>
#include <string_view>

/// PEM files of keys and certificates, read only if other users cannot change them.
namespace troupe::runtime {

/// An error with `errc::not_authenticated`: "PATH WHY; ADVICE".
[[nodiscard]] tl::unexpected<error> refuse(const std::filesystem::path& path, std::string_view why,
                                           std::string_view advice);

/// Write a new file durably. A file that could not be completed is removed.
[[nodiscard]] expected<void> write_key(const std::filesystem::path& path, EVP_PKEY* key);
[[nodiscard]] expected<void> write_certificate(const std::filesystem::path& path, X509* certificate);

/// Replace a file durably, at once for all readers.
[[nodiscard]] expected<void> replace_revocation_list(const std::filesystem::path& path, X509_CRL* list);
[[nodiscard]] expected<void> replace_text(const std::filesystem::path& path, std::string_view text);

/// Fail with `errc::not_authenticated` for a file that belongs to another user, that others may change, or, for a key,
/// that others may read.
[[nodiscard]] expected<key_ptr> read_key(const std::filesystem::path& path);
[[nodiscard]] expected<certificate_ptr> read_certificate(const std::filesystem::path& path);
[[nodiscard]] expected<std::string> read_text(const std::filesystem::path& path);

/// Where the list of revoked certificates is expected that belongs to this authority's certificate.
[[nodiscard]] std::filesystem::path revocation_path(const std::filesystem::path& ca);

/// The revocation list beside the authority's certificate; null if there is none. Fails with `errc::not_authenticated`
/// for a list that the authority has not signed.
[[nodiscard]] expected<revocation_list_ptr> read_revocation_list(const std::filesystem::path& ca, X509* authority);

/// Valid or expired; fails for a certificate that is not valid yet. `path` is for the message.
[[nodiscard]] expected<validity> check_dates(const std::filesystem::path& path, const X509* certificate);

/// What the three files of a host hold.
struct key_material {
  key_ptr key;
  certificate_ptr certificate;
  certificate_ptr authority;
};

[[nodiscard]] expected<key_material> read_material(const tls_files& files);

/// Fails with `errc::not_authenticated`, and this advice, for files that do not belong together.
[[nodiscard]] expected<void> check_match(const tls_files& files, const key_material& what, std::string_view advice);

/// Whether both certificates are valid, or one has expired; fails for one that is not valid yet.
[[nodiscard]] expected<validity> check_dates(const tls_files& files, const key_material& what);

/// Whether the three files are readable and belong together. Expired ones are no error, since those for loopback are
/// made again. `advice` ends the message about files that do not belong together.
[[nodiscard]] expected<validity> check_files(const tls_files& files, std::string_view advice);

} // namespace troupe::runtime
