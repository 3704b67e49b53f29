#include "net/host_name.hpp"
#include "net/keys/certificates.hpp"
#include "net/keys/issued_index.hpp"
#include "net/keys/key_directory.hpp"
#include "net/keys/key_files.hpp"

#include <troupe/runtime/keys.hpp>

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <tuple>
#include <unistd.h>
#include <utility>

namespace troupe::runtime {

namespace {

namespace fs = std::filesystem;

constexpr auto setup_advice =
    "run `troupe certs init` once for the cluster and `troupe certs issue HOST` for each host";

/// Thirteen months, so that a yearly renewal has a month's time.
constexpr int valid_days = 396;

constexpr auto warning_period = std::chrono::days{30};

fs::path cluster_directory(const fs::path& directory) {
  return directory / "cluster";
}

tls_files cluster_files(const fs::path& directory, const host_name& host) {
  auto place = cluster_directory(directory);
  return {place / (host.text + ".pem"), place / (host.text + ".key"), place / "ca.pem", key_scope::cluster};
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
    return fail(errc::not_found, fmt::format("{}: the authority's key is not on this host; run `troupe certs` on the "
                                             "host where `troupe certs init` was run",
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

/// Exclusive access to the authority. Each certificate is in the index before it is used.
class office {
 public:
  static expected<office> open(const fs::path& directory) {
    TROUPE_TRY(auto authority, read_authority(directory));
    auto lock = std::make_unique<directory_lock>(cluster_directory(directory));
    TROUPE_TRY(auto index, issued_index::read(cluster_directory(directory) / "issued.jsonl"));
    return office{directory, std::move(authority), std::move(lock), std::move(index)};
  }

  [[nodiscard]] tls_files files_of(const host_name& host) const { return cluster_files(directory_, host); }

  /// Remembers the certificate that is kept for a host: an earlier version may have made it.
  expected<void> remember_kept(const host_name& host) {
    const auto path = files_of(host).certificate;
    if (!is_present(path))
      return {};
    TROUPE_TRY(const auto certificate, read_certificate(path));
    if (is_signed_by(certificate.get(), authority_.certificate.get()))
      index_.add(describe(host, certificate.get()));
    return {};
  }

  /// Writes a new key and its certificate into a directory of their own.
  expected<staging_directory> sign(const host_name& host, certificate_role role, const std::vector<std::string>& also) {
    auto names = alternative_name(host);
    for (const auto& each : also) {
      TROUPE_TRY(const auto further, parse_host(each));
      names += fmt::format(",{}", alternative_name(further));
    }
    TROUPE_TRY(auto key, make_key());
    TROUPE_TRY(auto certificate, make_certificate(key.get(), authority_, {host.text, names, role, valid_days}));
    index_.add(describe(host, certificate.get()));
    TROUPE_TRY(index_.write());
    TROUPE_TRY(auto staging, staging_directory::make(cluster_directory(directory_)));
    TROUPE_TRY(write_key(staging.path() / "key", key.get()));
    TROUPE_TRY(write_certificate(staging.path() / "certificate", certificate.get()));
    return staging;
  }

  expected<std::size_t> revoke(const host_name& host) {
    // A file that cannot be read must not keep the others valid.
    std::ignore = remember_kept(host);
    const auto count = index_.revoke(host.text);
    if (count == 0)
      return fail(errc::not_found,
                  fmt::format("the authority has made no certificate for {}; `troupe certs list` shows "
                              "those that it has made",
                              host.text));
    TROUPE_TRY(index_.write());
    TROUPE_TRY(const auto list, make_revocation_list(authority_, index_.revoked_serials()));
    TROUPE_TRY(replace_revocation_list(revocation_path(files_of(host).ca), list.get()));
    return count;
  }

  [[nodiscard]] const issued_index& index() const noexcept { return index_; }

 private:
  office(fs::path directory, signing_authority authority, std::unique_ptr<directory_lock> lock, issued_index index)
      : directory_(std::move(directory)),
        authority_(std::move(authority)),
        lock_(std::move(lock)),
        index_(std::move(index)) {}

  static std::string alternative_name(const host_name& host) {
    return fmt::format("{}:{}", host.is_address ? "IP" : "DNS", host.text);
  }

  static issued_certificate describe(const host_name& host, const X509* certificate) {
    return {host.text,
            role_of(certificate),
            further_names_of(certificate),
            serial_of(certificate),
            expiry_of(certificate),
            false,
            false};
  }

  fs::path directory_;
  signing_authority authority_;
  std::unique_ptr<directory_lock> lock_;
  issued_index index_;
};

/// Both files appear, or neither; existing ones are not replaced.
expected<void> publish(const staging_directory& staging, const tls_files& files) {
  if (link((staging.path() / "key").c_str(), files.key.c_str()) != 0)
    return fail(system_error(files.key.string()));
  if (link((staging.path() / "certificate").c_str(), files.certificate.c_str()) != 0) {
    auto reason = system_error(files.certificate.string());
    unlink(files.key.c_str());
    return fail(std::move(reason));
  }
  sync_directory(files.key.parent_path());
  return {};
}

/// Replaces the files one after another. A reader in between finds files that do not match, and reads them again later.
expected<void> replace(const staging_directory& staging, const tls_files& files) {
  if (std::rename((staging.path() / "key").c_str(), files.key.c_str()) != 0)
    return fail(system_error(files.key.string()));
  if (std::rename((staging.path() / "certificate").c_str(), files.certificate.c_str()) != 0)
    return fail(system_error(files.certificate.string()));
  sync_directory(files.key.parent_path());
  return {};
}

std::string_view option_of(certificate_role role) {
  return role == certificate_role::driver ? " --role driver" : role == certificate_role::both ? " --role both" : "";
}

/// Checks that this host may have the requested role.
expected<void> check_role(const tls_files& files, const X509* certificate, const host_name& host,
                          certificate_role wanted) {
  const auto role = role_of(certificate);
  if (includes(role, wanted))
    return {};
  if (role == certificate_role::none)
    return refuse(files.certificate, "has no role, because an earlier version of Troupe made it",
                  fmt::format("run `troupe certs renew {}{}` on the authority's host, and copy the files again",
                              host.text, option_of(wanted)));
  return refuse(files.certificate,
                fmt::format("has the role {}, and this program needs the role {}", to_string(role), to_string(wanted)),
                fmt::format("run `troupe certs renew {} --role both` on the authority's host, and copy the files again",
                            host.text));
}

} // namespace

std::string_view to_string(certificate_role role) noexcept {
  switch (role) {
  case certificate_role::none:
    return "no role";
  case certificate_role::node:
    return "node";
  case certificate_role::driver:
    return "driver";
  case certificate_role::both:
    return "node and driver";
  }
  return "no role";
}

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

expected<tls_files> issue_certificate(const fs::path& directory, const certificate_request& request) {
  TROUPE_TRY(const auto host, parse_host(request.host));
  TROUPE_TRY(auto authority, office::open(directory));
  auto files = authority.files_of(host);
  for (const auto& path : {files.certificate, files.key})
    if (is_present(path))
      return fail(errc::already_exists,
                  fmt::format("{} exists; to replace it, run `troupe certs renew {}`", path.string(), host.text));
  TROUPE_TRY(const auto staging, authority.sign(host, request.role, request.also));
  TROUPE_TRY(publish(staging, files));
  return files;
}

expected<tls_files> renew_certificate(const fs::path& directory, std::string_view host,
                                      const certificate_changes& changes) {
  TROUPE_TRY(const auto name, parse_host(host));
  TROUPE_TRY(auto authority, office::open(directory));
  auto files = authority.files_of(name);
  if (!is_present(files.certificate))
    return fail(errc::not_found, fmt::format("{}: no such file, so there is nothing to renew; run `troupe certs issue "
                                             "{}`",
                                             files.certificate.string(), name.text));
  TROUPE_TRY(authority.remember_kept(name));
  TROUPE_TRY(const auto before, read_certificate(files.certificate));
  const auto role = role_of(before.get());
  const auto kept = role == certificate_role::none ? certificate_role::node : role;
  TROUPE_TRY(const auto staging, authority.sign(name, changes.role.value_or(kept),
                                                changes.also ? *changes.also : further_names_of(before.get())));
  TROUPE_TRY(replace(staging, files));
  return files;
}

expected<std::size_t> revoke_certificates(const fs::path& directory, std::string_view host) {
  TROUPE_TRY(const auto name, parse_host(host));
  TROUPE_TRY(auto authority, office::open(directory));
  TROUPE_TRY(const auto count, authority.revoke(name));
  std::error_code ignored;
  const auto files = authority.files_of(name);
  fs::remove(files.key, ignored);
  fs::remove(files.certificate, ignored);
  return count;
}

expected<std::vector<issued_certificate>> list_certificates(const fs::path& directory) {
  TROUPE_TRY(const auto authority, office::open(directory));
  return authority.index().all();
}

expected<tls_files> cluster_keys(const fs::path& directory, std::string_view host, certificate_role role) {
  TROUPE_TRY(auto name, parse_host(is_any_address(host) ? this_host() : std::string{host}));
  auto files = cluster_files(directory, name);
  for (const auto& path : {files.certificate, files.key, files.ca})
    if (!is_present(path))
      return fail(errc::not_found,
                  fmt::format("{}: no such file, so this host has no cluster keys; run `troupe certs init` once for "
                              "the cluster and `troupe certs issue {}{}` there, then copy {}.pem, {}.key and ca.pem to "
                              "{} on this host",
                              path.string(), name.text, option_of(role), name.text, name.text,
                              cluster_directory(directory).string()));
  TROUPE_TRY(check_directory(cluster_directory(directory)));
  TROUPE_TRY(auto result, check_files(files, setup_advice));
  if (result == validity::expired)
    return refuse(
        files.certificate, "or its authority has expired",
        fmt::format("run `troupe certs renew {}` on the authority's host, and copy the files again", name.text));
  TROUPE_TRY(const auto certificate, read_certificate(files.certificate));
  TROUPE_TRY(const auto authority, read_certificate(files.ca));
  TROUPE_TRY(const auto list, read_revocation_list(files.ca, authority.get()));
  if (is_revoked(certificate.get(), list.get()))
    return refuse(files.certificate, "has been revoked",
                  fmt::format("run `troupe certs issue {}{}` on the authority's host, and copy the files again",
                              name.text, option_of(role)));
  TROUPE_TRY(check_role(files, certificate.get(), name, role));
  return files;
}

std::string expiry_warning(const tls_files& files, std::chrono::system_clock::time_point now) {
  if (files.scope == key_scope::loopback)
    return {};
  const auto certificate = read_certificate(files.certificate);
  if (!certificate)
    return {};
  const auto expires = expiry_of(certificate->get());
  if (expires - now > warning_period)
    return {};
  const auto name = name_of(certificate->get());
  return fmt::format("{} expires on {:%Y-%m-%d}: run `troupe certs renew {}` on the authority's host before, and copy "
                     "the files again",
                     files.certificate.string(), fmt::gmtime(std::chrono::system_clock::to_time_t(expires)), name);
}

} // namespace troupe::runtime
