#pragma once

#include <troupe/error.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// The purpose of keys.
enum class key_scope : std::uint8_t {
  /// Connections within this machine, between processes of one user. Neither names nor roles are checked.
  loopback,
  /// Connections between hosts. The dialling end checks the name that it dialled; both check the other's role and
  /// revocation.
  cluster,
};

/// The PEM files that one end of a mutual TLS connection needs.
struct tls_files {
  std::filesystem::path certificate;
  std::filesystem::path key;

  /// The certificate of the only authority that both ends trust.
  std::filesystem::path ca;

  key_scope scope = key_scope::loopback;

  bool operator==(const tls_files&) const = default;
};

/// The roles that a certificate of the cluster allows, as bits.
enum class certificate_role : std::uint8_t {
  /// A certificate of a version without roles. Always refused.
  none = 0,
  /// Accepts connections of drivers, and commands no other host.
  node = 1,
  /// Commands nodes, and accepts no connections.
  driver = 2,
  both = 3,
};

[[nodiscard]] constexpr bool includes(certificate_role role, certificate_role wanted) noexcept {
  return (static_cast<unsigned>(role) & static_cast<unsigned>(wanted)) == static_cast<unsigned>(wanted);
}

/// "node", "driver", "node and driver" or "no role".
[[nodiscard]] std::string_view to_string(certificate_role role) noexcept;

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

/// A certificate to make.
struct certificate_request {
  /// The name or address by which other hosts reach this one.
  std::string host;
  certificate_role role = certificate_role::node;
  /// Further names and addresses of it.
  std::vector<std::string> also = {};
};

/// Makes `cluster/HOST.pem` and `cluster/HOST.key`, signed by the authority in `directory`, which remembers it. Fails
/// with `errc::not_found` without an authority and `errc::already_exists` for a host that has a certificate.
[[nodiscard]] expected<tls_files> issue_certificate(const std::filesystem::path& directory,
                                                    const certificate_request& request);

/// Changes to a certificate that is renewed; absent fields stay.
struct certificate_changes {
  std::optional<certificate_role> role = {};
  std::optional<std::vector<std::string>> also = {};
};

/// Replaces both files of a host by a new key and a new certificate. A certificate without a role becomes a node's if
/// `changes` has none. The one before stays valid until it expires or is revoked. Fails with `errc::not_found` for a
/// host that has none.
[[nodiscard]] expected<tls_files> renew_certificate(const std::filesystem::path& directory, std::string_view host,
                                                    const certificate_changes& changes);

/// Revokes every certificate that the authority has ever made for this host, and removes the host's files. Copy the
/// revocation list, `cluster/revoked.crl`, to every host. Returns how many certificates of this host are revoked. Fails
/// with `errc::not_found` for a host that never had one. Idempotent.
[[nodiscard]] expected<std::size_t> revoke_certificates(const std::filesystem::path& directory, std::string_view host);

/// A certificate that the authority has made.
struct issued_certificate {
  std::string host;
  certificate_role role = certificate_role::none;
  std::vector<std::string> also;
  /// Hexadecimal digits.
  std::string serial;
  std::chrono::system_clock::time_point expires;
  bool is_revoked = false;
  /// Whether another was made for this host since.
  bool is_replaced = false;
};

/// All of them, in the order in which they were made.
[[nodiscard]] expected<std::vector<issued_certificate>> list_certificates(const std::filesystem::path& directory);

/// The cluster keys of this host, which `host` names: its name, or the address that it binds. A wildcard address
/// (empty, 0.0.0.0 or ::) means this machine's host name. Fails with `errc::not_found` if there are none and
/// `errc::not_authenticated` for keys that are expired or revoked, that do not permit `role`, that do not belong
/// together, or that other users may read or change.
[[nodiscard]] expected<tls_files> cluster_keys(const std::filesystem::path& directory, std::string_view host,
                                               certificate_role role);

/// A warning if keys of a cluster expire within 30 days, with the command that renews them; otherwise empty.
[[nodiscard]] std::string expiry_warning(const tls_files& files, std::chrono::system_clock::time_point now);

} // namespace troupe::runtime
