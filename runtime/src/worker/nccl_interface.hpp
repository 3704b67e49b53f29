#pragma once

#include <troupe/error.hpp>

#include <optional>
#include <string>

namespace troupe::runtime {

/// The network interface that carries this address of this host: "lo" for 127.0.0.1. Fails with `errc::unreachable`
/// where there is none.
[[nodiscard]] expected<std::string> interface_of(const std::string& address);

/// Makes NCCL listen on the interface that carries `address`, by its environment variables, unless the user has set
/// NCCL_SOCKET_IFNAME. NCCL reads them once: call this before it is opened, and keep `set` for the life of the process.
/// Fails with `errc::unsatisfiable` if NCCL already listens on another interface, and as `interface_of` does.
[[nodiscard]] expected<void> set_nccl_interface(const std::string& address, std::optional<std::string>& set);

} // namespace troupe::runtime
