#pragma once

#include <troupe/serialization/checkpoint/directory.hpp>

#include <cstdint>
#include <filesystem>
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

} // namespace troupe::serving
