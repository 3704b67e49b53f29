#include "net/keys/key_files.hpp"

#include "net/keys/key_directory.hpp"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/pem.h>

#include <array>
#include <cstdio>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;

/// Writes a new file through `write_pem` and syncs it; removes a file that it could not complete.
template <class Write>
expected<void> write_new_file(const fs::path& path, mode_t mode, Write write_pem) {
  int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (fd < 0)
    return fail(system_error(path.string()));
  bio_ptr file{BIO_new_fd(fd, BIO_CLOSE)};
  auto written = file && write_pem(file.get()) == 1 && fchmod(fd, mode) == 0 && fsync(fd) == 0;
  if (written)
    return {};
  auto reason = system_error(path.string());
  ERR_clear_error();
  unlink(path.c_str());
  return fail(std::move(reason));
}

/// The file appears under its name only when it is complete.
template <class Write>
expected<void> replace_file(const fs::path& path, mode_t mode, Write write) {
  TROUPE_TRY(auto staging, staging_directory::make(path.parent_path()));
  const auto staged = staging.path() / path.filename();
  TROUPE_TRY(write_new_file(staged, mode, write));
  if (std::rename(staged.c_str(), path.c_str()) != 0)
    return fail(system_error(path.string()));
  sync_directory(path.parent_path());
  return {};
}

enum class secrecy { secret, open };

/// Opens a file that belongs to us and that others cannot change, nor read if it is secret. Checks the open file, so a
/// file that takes its place later is not read.
expected<bio_ptr> open_checked(const fs::path& path, secrecy wanted) {
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return fail(system_error(path.string()));
  bio_ptr file{BIO_new_fd(fd, BIO_CLOSE)};
  struct stat status {};
  if (!file || fstat(fd, &status) != 0)
    return fail(system_error(path.string()));
  if (!S_ISREG(status.st_mode))
    return refuse(path, "is not a regular file", "put the PEM file there");
  auto may_be_roots = wanted == secrecy::open && status.st_uid == 0;
  if (status.st_uid != geteuid() && !may_be_roots)
    return refuse(path, "belongs to another user",
                  "take ownership of it (chown), or use keys of your own (TROUPE_KEYS)");
  if (wanted == secrecy::secret && (status.st_mode & 0177) != 0)
    return refuse(path, "can be read or changed by other users, who may know it",
                  fmt::format("make new keys, or chmod 600 {}", path.string()));
  if ((status.st_mode & 022) != 0)
    return refuse(path, "can be written by other users", fmt::format("check it, then chmod 644 {}", path.string()));
  return file;
}

constexpr auto damaged_advice = "replace it with the file made for this host";

int no_password(char*, int, int, void*) {
  return 0;
}

} // namespace

tl::unexpected<error> refuse(const fs::path& path, std::string_view why, std::string_view advice) {
  return fail(errc::not_authenticated, fmt::format("{} {}; {}", path.string(), why, advice));
}

expected<void> write_key(const fs::path& path, EVP_PKEY* key) {
  return write_new_file(path, 0600, [key](BIO* file) {
    return PEM_write_bio_PKCS8PrivateKey(file, key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

expected<void> write_certificate(const fs::path& path, X509* certificate) {
  return write_new_file(path, 0644, [certificate](BIO* file) { return PEM_write_bio_X509(file, certificate); });
}

expected<void> replace_revocation_list(const fs::path& path, X509_CRL* list) {
  return replace_file(path, 0644, [list](BIO* file) { return PEM_write_bio_X509_CRL(file, list); });
}

expected<void> replace_text(const fs::path& path, std::string_view text) {
  return replace_file(path, 0600, [text](BIO* file) {
    std::size_t written = 0;
    return text.empty() ? 1 : BIO_write_ex(file, text.data(), text.size(), &written);
  });
}

expected<key_ptr> read_key(const fs::path& path) {
  TROUPE_TRY(auto file, open_checked(path, secrecy::secret));
  key_ptr key{PEM_read_bio_PrivateKey(file.get(), nullptr, no_password, nullptr)};
  ERR_clear_error();
  if (!key)
    return refuse(path, "does not contain a private key in PEM format", damaged_advice);
  return key;
}

expected<certificate_ptr> read_certificate(const fs::path& path) {
  TROUPE_TRY(auto file, open_checked(path, secrecy::open));
  certificate_ptr certificate{PEM_read_bio_X509(file.get(), nullptr, no_password, nullptr)};
  ERR_clear_error();
  if (!certificate)
    return refuse(path, "does not contain a certificate in PEM format", damaged_advice);
  return certificate;
}

expected<std::string> read_text(const fs::path& path) {
  TROUPE_TRY(auto file, open_checked(path, secrecy::secret));
  std::string result;
  std::array<char, 4096> piece{};
  std::size_t count = 0;
  while (BIO_read_ex(file.get(), piece.data(), piece.size(), &count) == 1)
    result.append(piece.data(), count);
  ERR_clear_error();
  return result;
}

fs::path revocation_path(const fs::path& ca) {
  return ca.parent_path() / "revoked.crl";
}

expected<revocation_list_ptr> read_revocation_list(const fs::path& ca, X509* authority) {
  const auto path = revocation_path(ca);
  if (!is_present(path))
    return revocation_list_ptr{};
  TROUPE_TRY(auto file, open_checked(path, secrecy::open));
  revocation_list_ptr list{PEM_read_bio_X509_CRL(file.get(), nullptr, no_password, nullptr)};
  ERR_clear_error();
  if (!list || !is_signed_by(list.get(), authority))
    return refuse(path, fmt::format("is no list of revoked certificates of the authority {}", ca.string()),
                  "copy it again from the host where `troupe certs revoke` was run");
  return list;
}

expected<validity> check_dates(const fs::path& path, const X509* certificate) {
  auto result = validity_of(certificate);
  if (result == validity::not_yet_valid)
    return refuse(path, "is not valid yet", "check this machine's clock");
  return result;
}

expected<key_material> read_material(const tls_files& files) {
  key_material result;
  TROUPE_TRY(result.key, read_key(files.key));
  TROUPE_TRY(result.certificate, read_certificate(files.certificate));
  TROUPE_TRY(result.authority, read_certificate(files.ca));
  return result;
}

expected<void> check_match(const tls_files& files, const key_material& what, std::string_view advice) {
  if (!belongs_to(what.certificate.get(), what.key.get()))
    return refuse(files.certificate, fmt::format("does not belong to the key {}", files.key.string()), advice);
  if (!is_signed_by(what.certificate.get(), what.authority.get()))
    return refuse(files.certificate, fmt::format("is not signed by the authority {}", files.ca.string()), advice);
  return {};
}

expected<validity> check_dates(const tls_files& files, const key_material& what) {
  TROUPE_TRY(const auto own, check_dates(files.certificate, what.certificate.get()));
  TROUPE_TRY(const auto its, check_dates(files.ca, what.authority.get()));
  return own == validity::valid ? its : validity::expired;
}

expected<validity> check_files(const tls_files& files, std::string_view advice) {
  TROUPE_TRY(const auto what, read_material(files));
  TROUPE_TRY(check_match(files, what, advice));
  return check_dates(files, what);
}

} // namespace troupe::runtime
