#pragma once

#include "tcp/tls_records.hpp"

#include <troupe/collectives/tcp_channel.hpp>

namespace troupe::collectives::tcp {

/// Each direction gets a new key after `records_per_key`.
[[nodiscard]] expected<std::unique_ptr<tls_channel>> make_tls_channel(unique_fd socket, tls_side side,
                                                                      const session_key& key, std::string name,
                                                                      std::uint64_t records_per_key);

} // namespace troupe::collectives::tcp
