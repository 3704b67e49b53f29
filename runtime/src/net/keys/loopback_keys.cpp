#include "net/keys/certificates.hpp"
#include "net/keys/key_directory.hpp"
#include "net/keys/key_files.hpp"

#include <troupe/runtime/keys.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <optional>
#include <sys/stat.h>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;

/// Long: they are renewed when they expire, and are valid on this machine only.
constexpr int loopback_valid_days = 3650;

tls_files loopback_files(const fs::path& directory) {
  return {directory / "loopback.pem", directory / "loopback.key", directory / "ca.pem", key_scope::loopback};
}

expected<void> write_loopback_keys(const fs::path& directory) {
  TROUPE_TRY(auto authority, make_authority("Troupe loopback authority"));
  TROUPE_TRY(auto key, make_key());
  TROUPE_TRY(auto certificate, make_certificate(key.get(), authority,
                                                {"localhost", "DNS:localhost,IP:127.0.0.1,IP:::1",
                                                 certificate_role::none, loopback_valid_days}));
  auto files = loopback_files(directory);
  return write_key(files.key, key.get())
      .and_then([&] { return write_certificate(files.certificate, certificate.get()); })
      .and_then([&] { return write_certificate(files.ca, authority.certificate.get()); });
}

/// Whether the directory's keys are valid or expired; nothing if there is no directory.
expected<std::optional<validity>> check_loopback_keys(const fs::path& directory) {
  struct stat status {};
  if (lstat(directory.c_str(), &status) != 0 && errno == ENOENT)
    return std::optional<validity>{};
  TROUPE_TRY(check_directory(directory));
  const auto files = loopback_files(directory);
  const auto advice = fmt::format("remove the directory {} to have its keys made again", directory.string());
  const auto or_as_advised = [&advice](error reason) {
    reason.message += ", or " + advice;
    return reason;
  };
  TROUPE_TRY(const auto what, read_material(files).map_error(or_as_advised));
  TROUPE_TRY(check_match(files, what, advice));
  TROUPE_TRY(const auto result, check_dates(files, what).map_error(or_as_advised));
  return result;
}

/// Makes new keys unless another process has just made them.
expected<void> make_loopback_keys(const fs::path& parent, const fs::path& directory) {
  directory_lock lock{parent};
  TROUPE_TRY(auto present, check_loopback_keys(directory));
  if (present == validity::valid)
    return {};
  TROUPE_TRY(auto staging, staging_directory::make(parent));
  TROUPE_TRY(write_loopback_keys(staging.path()));
  if (present == validity::expired)
    return staging.replace(directory);
  TROUPE_TRY(staging.move_to(directory));
  return {};
}

} // namespace

expected<tls_files> loopback_keys(const fs::path& directory) {
  auto place = directory / "loopback";
  TROUPE_TRY(auto present, check_loopback_keys(place));
  if (present != validity::valid) {
    auto made = ensure_directory(directory).and_then([&] { return make_loopback_keys(directory, place); });
    if (!made)
      return fail(std::move(made.error()));
  }
  return loopback_files(place);
}

} // namespace troupe::runtime
