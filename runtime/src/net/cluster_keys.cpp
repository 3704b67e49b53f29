#include "net/certificates.hpp"
#include "net/host_name.hpp"
#include "net/key_directory.hpp"
#include "net/key_files.hpp"

#include <troupe/runtime/keys.hpp>

#include <fmt/format.h>

#include <unistd.h>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;

constexpr auto setup_advice =
    "run `troupe certs init` once for the cluster and `troupe certs issue HOST` for each host";

fs::path cluster_directory(const fs::path& directory) {
  return directory / "cluster";
}

tls_files cluster_files(const fs::path& directory, const host_name& host) {
  auto place = cluster_directory(directory);
  return {place / (host.text + ".pem"), place / (host.text + ".key"), place / "ca.pem"};
}

fs::path authority_key(const fs::path& directory) {
  return cluster_directory(directory) / "ca.key";
}

expected<signing_authority> read_authority(const fs::path& directory) {
  auto certificate_path = cluster_directory(directory) / "ca.pem";
  auto key_path = authority_key(directory);
  if (!is_present(certificate_path))
    return fail(errc::not_found, fmt::format("{}: no such file, so there is no authority; run `troupe certs init` once "
                                             "for the cluster",
                                             certificate_path.string()));
  if (!is_present(key_path))
    return fail(errc::not_found, fmt::format("{}: the authority's key is not on this host; run `troupe certs issue` on "
                                             "the host where `troupe certs init` was run",
                                             key_path.string()));
  TROUPE_TRY(auto key, read_key(key_path));
  TROUPE_TRY(auto certificate, read_certificate(certificate_path));
  if (!belongs_to(certificate.get(), key.get()))
    return refuse(certificate_path, fmt::format("does not belong to the key {}", key_path.string()),
                  "restore the pair that `troupe certs init` made");
  TROUPE_TRY(auto dates, check_dates(certificate_path, certificate.get()));
  if (dates == validity::expired)
    return refuse(certificate_path, "has expired", fmt::format("remove its directory, then {}", setup_advice));
  return signing_authority{std::move(key), std::move(certificate)};
}

/// Creates both files or neither; does not replace existing ones.
expected<void> publish_pair(const tls_files& files, EVP_PKEY* key, X509* certificate) {
  TROUPE_TRY(auto staging, staging_directory::make(files.key.parent_path()));
  auto staged_key = staging.path() / "key";
  auto staged_certificate = staging.path() / "certificate";
  auto written =
      write_key(staged_key, key).and_then([&] { return write_certificate(staged_certificate, certificate); });
  if (!written)
    return written;
  if (link(staged_key.c_str(), files.key.c_str()) != 0)
    return fail(system_error(files.key.string()));
  if (link(staged_certificate.c_str(), files.certificate.c_str()) != 0) {
    auto reason = system_error(files.certificate.string());
    unlink(files.key.c_str());
    return fail(std::move(reason));
  }
  sync_directory(files.key.parent_path());
  return {};
}

} // namespace

expected<void> init_cluster_ca(const fs::path& directory) {
  TROUPE_TRY(ensure_directory(directory));
  auto place = cluster_directory(directory);
  auto taken = [&place] {
    return fail(errc::already_exists,
                fmt::format("{} already holds cluster keys; to start over, remove it and issue all hosts' "
                            "certificates again",
                            place.string()));
  };
  std::error_code ignored;
  if (is_present(place) && !fs::is_empty(place, ignored))
    return taken();
  TROUPE_TRY(auto staging, staging_directory::make(directory));
  TROUPE_TRY(auto authority, make_authority("Troupe cluster authority"));
  auto written = write_key(staging.path() / "ca.key", authority.key.get()).and_then([&] {
    return write_certificate(staging.path() / "ca.pem", authority.certificate.get());
  });
  if (!written)
    return written;
  TROUPE_TRY(auto moved, staging.move_to(place));
  if (!moved)
    return taken();
  return {};
}

expected<tls_files> issue_certificate(const fs::path& directory, std::string_view host) {
  TROUPE_TRY(auto name, parse_host(host));
  TROUPE_TRY(auto authority, read_authority(directory));
  auto files = cluster_files(directory, name);
  for (const auto& path : {files.certificate, files.key})
    if (is_present(path))
      return fail(
          errc::already_exists,
          fmt::format("{} exists; remove the host's .pem and .key to issue its certificate again", path.string()));
  TROUPE_TRY(auto key, make_key());
  TROUPE_TRY(auto certificate,
             make_certificate(key.get(), authority, name.text, (name.is_address ? "IP:" : "DNS:") + name.text));
  TROUPE_TRY(publish_pair(files, key.get(), certificate.get()));
  return files;
}

expected<tls_files> cluster_keys(const fs::path& directory, std::string_view host) {
  TROUPE_TRY(auto name, parse_host(is_any_address(host) ? this_host() : std::string{host}));
  auto files = cluster_files(directory, name);
  for (const auto& path : {files.certificate, files.key, files.ca})
    if (!is_present(path))
      return fail(
          errc::not_found,
          fmt::format("{}: no such file, so this host has no cluster keys; run `troupe certs init` once for the "
                      "cluster and `troupe certs issue {}` there, then copy {}.pem, {}.key and ca.pem to {} on "
                      "this host",
                      path.string(), name.text, name.text, name.text, cluster_directory(directory).string()));
  TROUPE_TRY(check_directory(cluster_directory(directory)));
  TROUPE_TRY(auto result, check_files(files, setup_advice));
  if (result == validity::expired)
    return refuse(files.certificate, "or its authority has expired",
                  fmt::format("remove it and its key, and run `troupe certs issue {}` again", name.text));
  return files;
}

} // namespace troupe::runtime
