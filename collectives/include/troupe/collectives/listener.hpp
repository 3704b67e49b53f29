#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/port_range.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <sys/socket.h>

/// Everything in a run that listens for its peers, data ports and the driver's port for parts, gets its socket here.
namespace troupe::collectives::tcp {

/// An IPv4 or IPv6 address and a port.
class address {
 public:
  address() = default;
  address(const sockaddr* data, socklen_t size_bytes) noexcept;

  [[nodiscard]] const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&storage_); }
  [[nodiscard]] socklen_t size_bytes() const noexcept { return size_bytes_; }
  [[nodiscard]] int family() const noexcept { return storage_.ss_family; }
  [[nodiscard]] std::uint16_t port() const noexcept;
  void set_port(std::uint16_t port) noexcept;

  /// Whether both are the same host, whatever their ports.
  [[nodiscard]] bool has_host_of(const address& other) const noexcept;

 private:
  sockaddr_storage storage_{};
  socklen_t size_bytes_ = 0;
};

/// "10.0.0.7:4711", "[fd00::7]:4711".
[[nodiscard]] std::string to_string(const address& x);

/// True for "localhost", 127.0.0.0/8 and ::1, also in brackets: addresses that only processes on this machine can
/// reach. No name is looked up.
[[nodiscard]] bool is_loopback(std::string_view host);

/// An address of this machine, by name or number; its port is 0. Fails with `errc::unreachable` if the name does not
/// resolve or names another machine.
[[nodiscard]] expected<address> resolve_own_host(const std::string& host);

/// A listening socket that does not block and is closed on exec.
struct listener {
  unique_fd socket;
  address at;
};

/// Listens at `host`, at the first free port of the range, or at one that the system chooses. Fails with
/// `errc::unreachable`.
[[nodiscard]] expected<listener> listen_at(address host, const std::optional<port_range>& ports);

} // namespace troupe::collectives::tcp
