#include <troupe/port_range.hpp>

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

namespace troupe {

namespace {

std::optional<std::uint16_t> parse_port(std::string_view digits) {
  std::uint16_t value = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (code != std::errc{} || end != digits.data() + digits.size())
    return std::nullopt;
  return value;
}

} // namespace

expected<void> validate_ports(const port_range& x) {
  if (x.first == 0 || x.last < x.first)
    return fail(errc::invalid_argument, fmt::format("'{}' is not a range of ports: give the first and the last one, "
                                                    "both from 1 to 65535, as in 28400-28499",
                                                    to_string(x)));
  return {};
}

expected<port_range> parse_port_range(const std::string& text) {
  const auto all = std::string_view{text};
  const auto mark = all.find('-');
  const auto first = parse_port(all.substr(0, mark));
  const auto last = mark == std::string_view::npos ? first : parse_port(all.substr(mark + 1));
  if (!first || !last)
    return fail(errc::invalid_argument, fmt::format("'{}' is not a range of ports: give the first and the last one, "
                                                    "both from 1 to 65535, as in 28400-28499",
                                                    text));
  const auto result = port_range{*first, *last};
  TROUPE_TRY(validate_ports(result));
  return result;
}

std::string to_string(const port_range& x) {
  return fmt::format("{}-{}", x.first, x.last);
}

} // namespace troupe
