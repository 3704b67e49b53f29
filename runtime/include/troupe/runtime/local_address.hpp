#pragma once

#include <string>

namespace troupe::runtime {

/// The local address from which this machine reaches `host`; empty if it cannot. Sends nothing.
[[nodiscard]] std::string local_address_towards(const std::string& host);

} // namespace troupe::runtime
