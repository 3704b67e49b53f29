#pragma once

#include <troupe/error.hpp>

#include <cstdint>
#include <string>

namespace troupe {

/// A parsed `HOST:PORT` or `[IPV6]:PORT`.
struct endpoint {
  std::string host;
  std::uint16_t port = 0;

  bool operator==(const endpoint&) const = default;
};

/// Parses `HOST:PORT`. Port 0 is valid only where the system chooses the port; the caller checks that.
[[nodiscard]] expected<endpoint> parse_endpoint(const std::string& text);

[[nodiscard]] std::string to_string(const endpoint& where);

} // namespace troupe
