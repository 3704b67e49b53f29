#pragma once

#include <troupe/error.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/staging.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <set>

namespace troupe::actors {

/// The exchanges of the current generation, and which ranks have contributed to each. A plain class.
class exchange_table {
 public:
  /// Begins a generation and forgets the exchanges of older ones. False, without effect, if this generation or a later
  /// one has begun before.
  [[nodiscard]] bool begin(const generation_started& message);

  /// Takes one contribution. Returns the blobs of all ranks once the last has come, nothing before. Fails with
  /// `errc::stale_generation` (another run or generation), `errc::aborted` (it was given up) or
  /// `errc::invalid_argument` (a rank out of range, another size of the group, or another blob from a rank that has
  /// contributed).
  [[nodiscard]] expected<std::optional<exchange_result>> add(const exchange_request& message);

  /// Gives up an exchange of this generation. False if it was given up before.
  [[nodiscard]] bool end(const exchange_ended& message);

  [[nodiscard]] generation_id generation() const noexcept { return current_.generation; }

 private:
  struct contributions {
    std::uint32_t group_size = 0;
    /// By rank.
    std::map<std::uint32_t, std::string> blobs;
  };

  generation_started current_;
  /// By sequence number.
  std::map<std::uint64_t, contributions> pending_;
  std::set<std::uint64_t> ended_;
};

} // namespace troupe::actors
