#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// The PEM files that one end of a mutual TLS connection needs.
struct tls_files {
  std::filesystem::path certificate;
  std::filesystem::path key;

  /// The certificate of the only authority that both ends trust.
  std::filesystem::path ca;

  bool operator==(const tls_files&) const = default;
};

/// The directory of keys: $TROUPE_KEYS, else $XDG_CONFIG_HOME/troupe/keys, else ~/.config/troupe/keys. The functions
/// below take such a directory. Its `loopback/` holds this user's keys for this machine, its `cluster/` those for
/// connections between hosts.
[[nodiscard]] std::filesystem::path default_key_directory();

/// True for "localhost", 127.0.0.0/8 and ::1: addresses that only processes on this machine can reach.
[[nodiscard]] bool is_loopback(std::string_view host);

/// Keys for connections within this machine. Only processes that can read this user's files can connect. The keys are
/// made at first use and again after they expire; concurrent callers get the same keys. The authority's own key is
/// discarded, so no second certificate can be made. Fails with `errc::not_authenticated` for files that other users may
/// read or change, or that do not belong together.
[[nodiscard]] expected<tls_files> loopback_keys(const std::filesystem::path& directory);

/// Makes the cluster's certificate authority: `cluster/ca.pem`, which every host gets a copy of, and `cluster/ca.key`,
/// which stays here. Fails with `errc::already_exists` if there is one, because replacing it would invalidate all
/// hosts' certificates.
[[nodiscard]] expected<void> init_cluster_ca(const std::filesystem::path& directory);

/// Makes `cluster/HOST.pem` and `cluster/HOST.key` for a host name or address, signed by the authority in `directory`.
/// Fails with `errc::not_found` without an authority and `errc::already_exists` for a host that has a certificate.
[[nodiscard]] expected<tls_files> issue_certificate(const std::filesystem::path& directory, std::string_view host);

/// The cluster keys of this host, which `host` names: its name, or the address that it binds. A wildcard address
/// (empty, 0.0.0.0 or ::) means this machine's host name. Fails with `errc::not_found` if there are none and
/// `errc::not_authenticated` for keys that are expired, do not belong together, or that other users may read or change.
[[nodiscard]] expected<tls_files> cluster_keys(const std::filesystem::path& directory, std::string_view host);

} // namespace troupe::runtime
