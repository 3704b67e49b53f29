#pragma once

#include <troupe/error.hpp>
#include <troupe/messages.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

namespace troupe::actors {

/// What the collectives actor remembers: which ranks have contributed to which exchange of the current generation. A
/// plain class.
class exchange_table {
 public:
  /// Begins a generation and forgets all exchanges of older ones. Returns whether it did: not for a generation that has
  /// begun before, and not for an older one, whose message comes late.
  [[nodiscard]] bool begin(const generation_started& message);

  /// Takes one contribution. Returns the blobs of all ranks once the last is in, nothing before. Fails with
  /// `errc::stale_generation` (another run or generation) or `errc::invalid_argument` (a rank out of range, or another
  /// blob from a rank that has contributed).
  [[nodiscard]] expected<std::optional<exchange_result>> add(const exchange_request& message);

  [[nodiscard]] generation_id generation() const noexcept { return current_.generation; }

 private:
  generation_started current_;
  /// By sequence number, then by rank.
  std::map<std::uint64_t, std::map<std::uint32_t, std::string>> pending_;
};

} // namespace troupe::actors
