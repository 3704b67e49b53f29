#pragma once

#include <troupe/error.hpp>
#include <troupe/inspect.hpp>

#include <cstdint>
#include <string>

namespace troupe {

/// Ports from `first` to `last`, both included.
struct port_range {
  std::uint16_t first = 0;
  std::uint16_t last = 0;

  bool operator==(const port_range&) const = default;
};

TROUPE_INSPECT(port_range, first, last)

/// Fails with `errc::invalid_argument` for a range without ports, and for one with port 0.
[[nodiscard]] expected<void> validate_ports(const port_range& x);

/// "28400-28499", or a single port.
[[nodiscard]] expected<port_range> parse_port_range(const std::string& text);
[[nodiscard]] std::string to_string(const port_range& x);

} // namespace troupe
