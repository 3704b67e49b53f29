#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

/// Who holds a run's directory: the content of its `.lock`.
namespace troupe::actors {

/// A driver that holds a directory, or did when it was killed.
struct lock_holder {
  std::uint32_t pid = 0;
  /// Empty in directories of older versions.
  std::string host;

  bool operator==(const lock_holder&) const = default;
};

/// Nothing if no driver holds the directory, and the last one let it go.
[[nodiscard]] std::optional<lock_holder> read_lock_holder(const std::filesystem::path& run);

/// The content of the lock of a driver in this process.
[[nodiscard]] std::string lock_content();

/// This machine's name, as locks have it.
[[nodiscard]] std::string lock_host();

/// Whether the holder lives, as far as can be told from this machine without taking the lock.
enum class holder_life : std::uint8_t {
  lives = 1,
  is_gone = 2,
  /// On another machine.
  unknown = 3,
};

/// How often a process of this machine has the run's lock open; nothing if it cannot be told.
[[nodiscard]] std::optional<int> times_open(std::uint32_t pid, const std::filesystem::path& run);

[[nodiscard]] holder_life life_of(const lock_holder& holder, const std::filesystem::path& run);

} // namespace troupe::actors
