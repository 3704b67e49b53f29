#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// What one end of a mutual TLS connection needs: PEM files.
struct tls_files {
  std::filesystem::path certificate;
  std::filesystem::path key;

  /// The certificate of the authority that both ends trust, and no other.
  std::filesystem::path ca;

  bool operator==(const tls_files&) const = default;
};

/// Where keys live: $TROUPE_KEYS, else $XDG_CONFIG_HOME/troupe/keys, else ~/.config/troupe/keys. All functions below
/// take such a directory; in it, `loopback/` holds this user's keys for this machine and `cluster/` those that hosts
/// share.
[[nodiscard]] std::filesystem::path default_key_directory();

/// True for "localhost", 127.0.0.0/8 and ::1: addresses that only processes of this machine reach.
[[nodiscard]] bool is_loopback(std::string_view host);

/// Keys for connections within this machine: only processes that can read this user's files can make such a connection.
/// Made at first use, and anew when they have expired; any number of processes may ask at the same time and get the
/// same keys. The authority's own key is thrown away, so nobody can make a second certificate.
/// Fails with `errc::not_authenticated` for files that others may read or change, or that do not belong together.
[[nodiscard]] expected<tls_files> loopback_keys(const std::filesystem::path& directory);

/// Makes the cluster's certificate authority: `cluster/ca.pem`, to be copied to every host, and `cluster/ca.key`, to
/// stay here. Fails with `errc::already_exists` when there is one: replacing it would turn away all hosts.
[[nodiscard]] expected<void> init_cluster_ca(const std::filesystem::path& directory);

/// Makes `cluster/HOST.pem` and `cluster/HOST.key` for a host name or address, signed by the authority here.
/// Fails with `errc::not_found` without an authority and `errc::already_exists` for a host that has a certificate.
[[nodiscard]] expected<tls_files> issue_certificate(const std::filesystem::path& directory, std::string_view host);

/// The cluster keys of this host, known by `host`: its name or the address that it binds; this machine's host name for
/// an address that means all of them (empty, 0.0.0.0 or ::). Fails with `errc::not_found` when it has none, and with
/// `errc::not_authenticated` for keys that are expired, do not belong together, or that others may read or change.
[[nodiscard]] expected<tls_files> cluster_keys(const std::filesystem::path& directory, std::string_view host);

} // namespace troupe::runtime
