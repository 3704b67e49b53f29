#pragma once

#include "decisions/time_point.hpp"

#include <troupe/serialization/checkpoint/directory.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <span>

namespace troupe::serving {

/// Which checkpoints a reload takes.
enum class reload_reach : std::uint8_t {
  /// Only one of a greater step than the one served.
  newer,
  /// The newest, whatever is served.
  any,
};

/// The checkpoint to load next: the newest that was not refused before, if it is another than the one served. `all` is
/// ordered by step, oldest first. Nothing to do is no checkpoint. Pure.
[[nodiscard]] std::optional<serialization::checkpoint_entry>
choose_checkpoint(std::span<const serialization::checkpoint_entry> all, const std::optional<step_id>& served,
                  const std::set<std::filesystem::path>& refused, reload_reach reach);

/// The checkpoints that could not be served. Without clock and thread.
class refused_checkpoints {
 public:
  /// What a failure says about the next attempt.
  enum class outlook : std::uint8_t {
    /// The checkpoint stays as it is.
    hopeless,
    /// Its cause may pass: the next attempts come after 1 s, 2 s, 4 s, and so on to 5 minutes.
    may_pass,
  };

  /// Whether this is new, and to be reported.
  [[nodiscard]] bool add(const std::filesystem::path& path, outlook reason, time_point now);

  /// Those that are not tried now.
  [[nodiscard]] std::set<std::filesystem::path> at(time_point now) const;

  /// Forgets those that are there no more.
  void keep(std::span<const serialization::checkpoint_entry> all);

  /// All are tried again.
  void retry() noexcept;

  [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }

 private:
  struct entry {
    time_point again = time_point::min();
    std::chrono::seconds delay{0};
  };
  std::map<std::filesystem::path, entry> entries_;
};

} // namespace troupe::serving
