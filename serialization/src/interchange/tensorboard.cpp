#include <troupe/serialization/interchange/tensorboard.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <string_view>

namespace troupe::serialization {

namespace {

constexpr auto crc_table = [] {
  std::array<std::uint32_t, 256> result{};
  for (std::uint32_t i = 0; i < result.size(); ++i) {
    auto value = i;
    for (int bit = 0; bit < 8; ++bit)
      value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78u : 0u);
    result[i] = value;
  }
  return result;
}();

template <class Unsigned>
void put_little_endian(std::string& to, Unsigned value) {
  for (std::size_t i = 0; i < sizeof(value); ++i)
    to += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

/// Checksums of checksums are weak, so that these are rotated and moved.
void put_masked_crc(std::string& to, std::string_view data) {
  const auto crc = crc32c(std::as_bytes(std::span{data}));
  put_little_endian(to, std::rotr(crc, 15) + 0xa282ead8u);
}

std::string framed(std::string_view data) {
  std::string result;
  put_little_endian(result, static_cast<std::uint64_t>(data.size()));
  put_masked_crc(result, std::string_view{result}.substr(0, 8));
  result += data;
  put_masked_crc(result, data);
  return result;
}

// -- protobuf's encoding: a key, which is the field's number and its wire type, then the value ------------------------

enum class wire_type : std::uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7)
    to += static_cast<char>(static_cast<unsigned char>(value | 0x80));
  to += static_cast<char>(static_cast<unsigned char>(value));
}

void put_key(std::string& to, std::uint32_t field, wire_type type) {
  put_varint(to, (field << 3) | static_cast<std::uint32_t>(type));
}

void put_bytes(std::string& to, std::uint32_t field, std::string_view value) {
  put_key(to, field, wire_type::bytes);
  put_varint(to, value.size());
  to += value;
}

/// Time and step of an `Event`.
std::string begin_event(wall_time when, std::uint64_t step) {
  std::string result;
  put_key(result, 1, wire_type::fixed64);
  put_little_endian(result,
                    std::bit_cast<std::uint64_t>(std::chrono::duration<double>(when.time_since_epoch()).count()));
  put_key(result, 2, wire_type::varint);
  put_varint(result, step);
  return result;
}

/// Readers refuse a message with a text that is no UTF-8.
std::string valid_utf8(const std::string& name) {
  if (std::ranges::all_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
    return name;
  const auto text = nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(text).get<std::string>();
}

} // namespace

std::uint32_t crc32c(std::span<const std::byte> data) noexcept {
  auto crc = ~std::uint32_t{0};
  for (auto each : data)
    crc = (crc >> 8) ^ crc_table[(crc ^ static_cast<std::uint32_t>(each)) & 0xff];
  return ~crc;
}

std::string tensorboard_version_record(wall_time when) {
  auto event = begin_event(when, 0);
  put_bytes(event, 3, "brain.Event:2");
  return framed(event);
}

std::string tensorboard_start_record(wall_time when, std::uint64_t step) {
  constexpr auto start = 1;
  std::string session;
  put_key(session, 1, wire_type::varint);
  put_varint(session, start);
  auto event = begin_event(when, step);
  put_bytes(event, 7, session);
  return framed(event);
}

std::string tensorboard_scalars_record(wall_time when, std::uint64_t step, const metric_map& values) {
  std::string summary;
  std::string scalar;
  for (const auto& [name, value] : values) {
    scalar.clear();
    put_bytes(scalar, 1, valid_utf8(name));
    put_key(scalar, 2, wire_type::fixed32);
    put_little_endian(scalar, std::bit_cast<std::uint32_t>(static_cast<float>(value)));
    put_bytes(summary, 1, scalar);
  }
  auto event = begin_event(when, step);
  put_bytes(event, 5, summary);
  return framed(event);
}

} // namespace troupe::serialization
