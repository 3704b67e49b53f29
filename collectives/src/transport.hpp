#pragma once

#include <troupe/error.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe::collectives {

/// One call of a collective, as error messages name it.
struct operation {
  std::string_view name;
  std::uint64_t sequence = 0;
  /// The one peer that is needed; all of them if it is `every_peer`.
  std::uint32_t peer = every_peer;

  static constexpr std::uint32_t every_peer = UINT32_MAX;
};

/// What the algorithms stand on: messages between two ranks. Used by one thread, except for `abort`. The first failure
/// is final, and after it no memory that was handed in is touched. Zero-length messages are the caller's to leave out.
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

  /// Starts the clock of one operation.
  [[nodiscard]] virtual expected<void> begin(const operation& op) = 0;

  /// Posts a message; both sides give the same tag and size. Failures show in `wait`.
  virtual ticket send(std::uint32_t peer, std::uint64_t tag, const std::byte* data, std::size_t size_bytes) = 0;
  virtual ticket receive(std::uint32_t peer, std::uint64_t tag, std::byte* data, std::size_t size_bytes) = 0;

  /// Returns once the message's memory is filled (receive) or no longer needed (send).
  [[nodiscard]] virtual expected<void> wait(ticket message) = 0;

  /// Waits for all messages since `begin`, and forgets them.
  [[nodiscard]] virtual expected<void> finish() = 0;

  /// Makes every pending and later call return `reason`. From any thread.
  virtual void abort(error reason) noexcept = 0;
};

} // namespace troupe::collectives
