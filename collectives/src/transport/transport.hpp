#pragma once

#include <troupe/collectives/flight_record.hpp>
#include <troupe/error.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace troupe::collectives {

/// The bits of a message's tag that come from its size. Two ranks that agree about all others mean the same message.
inline constexpr std::uint64_t tag_size_mask = std::uint64_t{0x3fff} << 36;

/// Where the kind of its call begins.
inline constexpr std::uint32_t tag_kind_shift = 56;

/// What the algorithms stand on: messages between two ranks. Used by one thread, except for `abort` and `record`. The
/// first failure is final, and after it no memory that was handed in is touched. Zero-length messages are the caller's
/// to leave out.
class transport {
 public:
  /// Names a posted message until `finish`.
  using ticket = std::size_t;

  transport() = default;
  transport(const transport&) = delete;
  transport& operator=(const transport&) = delete;
  virtual ~transport() = default;

  [[nodiscard]] virtual std::uint32_t rank() const noexcept = 0;
  [[nodiscard]] virtual std::uint32_t world_size() const noexcept = 0;

  /// What this rank is doing. From any thread.
  [[nodiscard]] virtual flight_record record() const = 0;

  /// For the calls that begin from now on.
  virtual void set_deadline(std::chrono::milliseconds deadline) noexcept = 0;

  /// Starts the clock of one call.
  [[nodiscard]] virtual expected<void> begin(const call_record& call) = 0;

  /// Posts a message; both sides give the same tag and size. Failures show in `wait`.
  virtual ticket send(std::uint32_t peer, std::uint64_t tag, const std::byte* data, std::size_t size_bytes) = 0;
  virtual ticket receive(std::uint32_t peer, std::uint64_t tag, std::byte* data, std::size_t size_bytes) = 0;

  /// Returns once the message's memory is filled (receive) or no longer needed (send).
  [[nodiscard]] virtual expected<void> wait(ticket message) = 0;

  /// Waits for all messages since `begin`, and forgets them. The call is over.
  [[nodiscard]] virtual expected<void> finish() = 0;

  /// Makes every pending and later call return `reason`. From any thread.
  virtual void abort(error reason) noexcept = 0;
};

} // namespace troupe::collectives
