#pragma once

#include <troupe/error.hpp>

#include <string>
#include <string_view>

namespace troupe::runtime {

/// A host as its certificate and its files are named.
struct host_name {
  /// In lower case; an address in its shortest form.
  std::string text;
  bool is_address = false;
};

/// Accepts addresses, also in brackets, and names. The result becomes a file name and part of a certificate, so
/// anything else fails with `errc::invalid_argument`.
[[nodiscard]] expected<host_name> parse_host(std::string_view host);

/// True for what a server binds to listen on all addresses: "", "0.0.0.0", "::" and "*".
[[nodiscard]] bool is_any_address(std::string_view host);

/// This machine's host name; "localhost" if it has none.
[[nodiscard]] std::string this_host();

} // namespace troupe::runtime
