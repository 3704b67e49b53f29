#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace troupe::runtime {

/// Which end of a connection this process is.
enum class basp_side : std::uint8_t { accepted, dialled };

/// Reads along what a peer sends to CAF's broker, and objects to messages that CAF 0.18 does not survive or should not
/// take. A message of BASP, CAF's protocol between actor systems, has a header of 32 bytes (operation, two bytes of
/// padding, flags, u32 length of the payload, u64 operation data, u64 source, u64 destination, all big-endian) and a
/// payload. CAF allocates what the header announces, reads the payload of a handshake whether there is one or not, and
/// takes the content of a message for a stream's if two bits of its id say so (basp::instance::handle and message_id).
class basp_guard {
 public:
  /// The longest payload.
  static constexpr std::uint32_t payload_limit_bytes = std::uint32_t{256} << 20;
  static constexpr std::uint32_t handshake_limit_bytes = std::uint32_t{1} << 20;
  static constexpr std::size_t header_bytes = 32;

  explicit basp_guard(basp_side side) noexcept : side_(side) {}

  /// Checks the next bytes of the connection, in pieces of any size. Returns the objection, to end a sentence that
  /// begins with "it sent"; the connection must then end. Check a piece before CAF gets it.
  [[nodiscard]] std::optional<std::string_view> take(std::span<const std::byte> bytes) noexcept;

 private:
  [[nodiscard]] std::optional<std::string_view> check_header() noexcept;

  basp_side side_;
  bool has_greeted_ = false;
  std::array<std::byte, header_bytes> header_{};
  std::size_t collected_ = 0;
  std::uint64_t payload_left_ = 0;
};

} // namespace troupe::runtime
