#include <troupe/data/idx.hpp>

#include "file_bytes.hpp"
#include "inflate.hpp"

#include <algorithm>
#include <cstdint>
#include <fmt/format.h>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace troupe::data {

namespace {

constexpr std::size_t most_dimensions = 4;
constexpr std::size_t most_header_bytes = 4 + 4 * most_dimensions;

std::optional<dtype> type_of(std::uint8_t code) {
  switch (code) {
  case 0x08:
    return dtype::u8;
  case 0x09:
    return dtype::i8;
  case 0x0b:
    return dtype::i16;
  case 0x0c:
    return dtype::i32;
  case 0x0d:
    return dtype::f32;
  case 0x0e:
    return dtype::f64;
  default:
    return std::nullopt;
  }
}

struct header {
  dtype type = dtype::u8;
  std::vector<std::uint64_t> dimensions;
  std::size_t header_bytes = 0;
  std::size_t value_bytes = 0;
};

std::uint8_t at(std::span<const std::byte> content, std::size_t index) {
  return std::to_integer<std::uint8_t>(content[index]);
}

std::string hex(std::uint8_t value) {
  return fmt::format("{:#04x}", value);
}

tl::unexpected<error> damaged(const std::string& file, const std::string& what) {
  return fail(errc::damaged, fmt::format("{}: {}", file, what));
}

/// `content` is the whole file, or at least its first `most_header_bytes`.
expected<header> parse_header(std::span<const std::byte> content, const std::string& file) {
  if (content.size() < 4)
    return damaged(file, fmt::format("not an IDX file: it has {} bytes, and a header at least 8", content.size()));
  if (at(content, 0) != 0 || at(content, 1) != 0)
    return damaged(file, fmt::format("not an IDX file: it begins with {} {}, expected two zero bytes",
                                     hex(at(content, 0)), hex(at(content, 1))));
  auto type = type_of(at(content, 2));
  if (!type)
    return damaged(
        file, fmt::format("IDX type {} at byte 2: expected 0x08, 0x09, 0x0b, 0x0c, 0x0d or 0x0e", hex(at(content, 2))));
  auto count = std::size_t{at(content, 3)};
  if (count == 0 || count > most_dimensions)
    return damaged(file, fmt::format("{} dimensions at byte 3: expected 1 to {}", count, most_dimensions));
  header result{*type, {}, 4 + 4 * count, size_of(*type)};
  if (content.size() < result.header_bytes)
    return damaged(file, fmt::format("truncated: it has {} bytes, and a header of {} dimensions {}", content.size(),
                                     count, result.header_bytes));
  for (std::size_t i = 0; i < count; ++i) {
    std::uint64_t dimension = 0;
    for (std::size_t b = 0; b < 4; ++b)
      dimension = dimension << 8u | at(content, 4 + 4 * i + b);
    // The size of a sample is used as a divisor.
    if (i > 0 && dimension == 0)
      return damaged(file, fmt::format("dimension {} is 0: samples would have no values", i));
    if (dimension != 0 && result.value_bytes > std::numeric_limits<std::size_t>::max() / 2 / dimension)
      return damaged(file, "not an IDX file: the dimensions in its header are impossibly large");
    result.value_bytes *= dimension;
    result.dimensions.push_back(dimension);
  }
  return result;
}

std::string shape_of(const header& head) {
  auto spec = column_spec{{}, head.type, head.dimensions, {}};
  return describe(spec);
}

expected<void> check_size(const header& head, std::size_t has_bytes, bool at_least, const std::string& file) {
  if (has_bytes == head.value_bytes && !at_least)
    return {};
  auto wanted = fmt::format("a header of {} requires {} bytes of values", shape_of(head), head.value_bytes);
  if (has_bytes < head.value_bytes)
    return damaged(file, fmt::format("truncated: {}, and there are {}", wanted, has_bytes));
  return damaged(file, fmt::format("{}, and there are more: header and values do not match", wanted));
}

/// Converts big-endian values to the processor's byte order.
template <std::size_t Size>
std::vector<std::byte> turned(std::span<const std::byte> values) {
  std::vector<std::byte> result(values.size());
  for (std::size_t i = 0; i < values.size(); i += Size)
    std::ranges::reverse_copy(values.subspan(i, Size), result.begin() + static_cast<std::ptrdiff_t>(i));
  return result;
}

std::vector<std::byte> turned(std::span<const std::byte> values, std::size_t size) {
  return size == 2 ? turned<2>(values) : size == 4 ? turned<4>(values) : turned<8>(values);
}

column make(const header& head, std::span<const std::byte> values, std::shared_ptr<const void> owner,
            std::string name) {
  auto shape = std::vector<std::uint64_t>(head.dimensions.begin() + 1, head.dimensions.end());
  auto spec = column_spec{std::move(name), head.type, std::move(shape), {}};
  auto size = size_of(head.type);
  if (size == 1)
    return {std::move(spec), values, std::move(owner)};
  auto native = std::make_shared<const std::vector<std::byte>>(turned(values, size));
  return {std::move(spec), *native, native};
}

expected<column> parse_packed(std::span<const std::byte> content, const std::string& file, std::string name) {
  TROUPE_TRY(auto begin, inflate_gzip(content, most_header_bytes, file));
  TROUPE_TRY(auto head, parse_header(begin.bytes, file));
  TROUPE_TRY(auto all, inflate_gzip(content, head.header_bytes + head.value_bytes, file));
  TROUPE_TRY(check_size(head, all.bytes.size() - head.header_bytes, !all.complete, file));
  auto owner = std::make_shared<const std::vector<std::byte>>(std::move(all.bytes));
  auto values = std::span{*owner}.subspan(head.header_bytes);
  return make(head, values, owner, std::move(name));
}

} // namespace

expected<column> parse_idx(std::span<const std::byte> content, std::shared_ptr<const void> owner,
                           const std::string& file, std::string column_name) {
  if (is_gzip(content))
    return parse_packed(content, file, std::move(column_name));
  TROUPE_TRY(auto head, parse_header(content, file));
  auto values = content.subspan(head.header_bytes);
  TROUPE_TRY(check_size(head, values.size(), false, file));
  return make(head, values, std::move(owner), std::move(column_name));
}

expected<column> read_idx(const std::filesystem::path& path, std::string column_name) {
  TROUPE_TRY(auto content, open_bytes(path));
  return parse_idx(content.bytes, content.owner, path.string(), std::move(column_name));
}

} // namespace troupe::data
