#include "net/basp_guard.hpp"

#include <algorithm>

namespace troupe::runtime {

namespace {

/// As CAF numbers them.
enum class operation : std::uint8_t {
  server_handshake,
  client_handshake,
  direct_message,
  routed_message,
  monitor_message,
  down_message,
  heartbeat,
};

constexpr std::size_t length_offset = 4;
constexpr std::size_t data_offset = 8;

/// The bits of a message's id that say what kind of message it is. The last two of the four kinds belong to streams,
/// which Troupe has none of.
constexpr unsigned category_shift = 60;
constexpr std::uint64_t category_mask = 3;
constexpr std::uint64_t first_stream_category = 2;

template <class T>
T big_endian(std::span<const std::byte> bytes) {
  T result = 0;
  for (auto each : bytes.first(sizeof(T)))
    result = static_cast<T>(result << 8 | std::to_integer<T>(each));
  return result;
}

} // namespace

std::optional<std::string_view> basp_guard::take(std::span<const std::byte> bytes) noexcept {
  while (!bytes.empty()) {
    if (payload_left_ > 0) {
      const auto skipped = std::min<std::uint64_t>(payload_left_, bytes.size());
      payload_left_ -= skipped;
      bytes = bytes.subspan(static_cast<std::size_t>(skipped));
      continue;
    }
    const auto count = std::min(header_bytes - collected_, bytes.size());
    std::ranges::copy(bytes.first(count), header_.begin() + static_cast<std::ptrdiff_t>(collected_));
    collected_ += count;
    bytes = bytes.subspan(count);
    if (collected_ < header_bytes)
      break;
    collected_ = 0;
    if (auto objection = check_header())
      return objection;
  }
  return std::nullopt;
}

std::optional<std::string_view> basp_guard::check_header() noexcept {
  const auto header = std::span<const std::byte>{header_};
  const auto what = static_cast<operation>(header[0]);
  const auto length = big_endian<std::uint32_t>(header.subspan(length_offset));
  const auto is_handshake = what == operation::server_handshake || what == operation::client_handshake;
  if (what > operation::heartbeat)
    return "a message of an operation that CAF does not have";
  if (length > (is_handshake ? handshake_limit_bytes : payload_limit_bytes))
    return "the header of a message that is longer than 256 MiB, or of a handshake that is longer than 1 MiB";
  if (what == operation::heartbeat && length != 0)
    return "a heartbeat with a payload";
  if (what != operation::heartbeat && length == 0)
    return "a message without the payload that its operation has";
  const auto greeting = side_ == basp_side::accepted ? operation::client_handshake : operation::server_handshake;
  if (has_greeted_ ? is_handshake : what != greeting)
    return has_greeted_ ? "a second handshake" : "another message before its handshake";
  const auto category = big_endian<std::uint64_t>(header.subspan(data_offset)) >> category_shift & category_mask;
  if ((what == operation::direct_message || what == operation::routed_message) && category >= first_stream_category)
    return "a message that is marked as a stream's";
  has_greeted_ = true;
  payload_left_ = length;
  return std::nullopt;
}

} // namespace troupe::runtime
