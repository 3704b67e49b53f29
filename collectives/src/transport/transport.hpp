#pragma once

#include <troupe/collectives/flight_record.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace troupe::collectives {

/// The bits of a message's tag that encode its size. Two ranks that agree on all other bits mean the same message.
inline constexpr std::uint64_t tag_size_mask = std::uint64_t{0x3fff} << 36;

/// The position of the call's kind in the tag.
inline constexpr std::uint32_t tag_kind_shift = 56;

/// Messages between two ranks: what the algorithms of `transport_communicator` need. Used by one thread, except for
/// `abort` and `record`. The first failure is final; after it the caller's memory is no longer accessed. The caller
/// does not post messages of length zero.
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

  /// The size of the pieces in which large operands of a reduction are best sent. The same for all ranks.
  [[nodiscard]] virtual std::uint64_t piece_bytes() const noexcept { return UINT64_MAX; }

  /// The longest time that a short message takes from here to another rank, as it was measured when the group was
  /// formed; 0: not measured. Other ranks may have measured other times.
  [[nodiscard]] virtual std::chrono::nanoseconds latency() const noexcept { return {}; }

  /// What this rank is doing. From any thread.
  [[nodiscard]] virtual flight_record record() const = 0;

  /// As `communicator::unanswering`.
  [[nodiscard]] virtual std::vector<rank_id> unanswering() const { return {}; }

  /// Applies to calls that begin from now on.
  virtual void set_deadline(std::chrono::milliseconds deadline) noexcept = 0;

  /// Starts a call and its clock.
  [[nodiscard]] virtual expected<void> begin(const call_record& call) = 0;

  /// Posts a message; both sides pass the same tag and size. Messages between two ranks with equal tags and sizes are
  /// received in the order in which they are sent. `wait` reports failures.
  virtual ticket send(std::uint32_t peer, std::uint64_t tag, const std::byte* data, std::size_t size_bytes) = 0;
  virtual ticket receive(std::uint32_t peer, std::uint64_t tag, std::byte* data, std::size_t size_bytes) = 0;

  /// Returns once the message's memory is filled (receive) or no longer needed (send).
  [[nodiscard]] virtual expected<void> wait(ticket message) = 0;

  /// Waits for all messages since `begin` and forgets them. Ends the call.
  [[nodiscard]] virtual expected<void> finish() = 0;

  /// Makes every pending and later call return `reason`. From any thread.
  virtual void abort(error reason) noexcept = 0;
};

} // namespace troupe::collectives
