#pragma once

#include <troupe/error.hpp>

#include <optional>
#include <string>

namespace troupe::runtime {

/// Has NCCL listen on the interface that carries `address`, by its environment variables; where the user has set
/// NCCL_SOCKET_IFNAME, that counts. NCCL reads them once: to be called before it is opened, and `set` is to be kept for
/// the life of the process. Fails with `errc::unsatisfiable` where NCCL listens on another interface already, and with
/// `errc::unreachable` where no interface of this host has the address.
[[nodiscard]] expected<void> set_nccl_interface(const std::string& address, std::optional<std::string>& set);

} // namespace troupe::runtime
