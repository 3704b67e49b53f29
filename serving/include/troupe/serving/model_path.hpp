#pragma once

#include <troupe/error.hpp>
#include <troupe/serving/served_model.hpp>

#include <filesystem>
#include <optional>

namespace troupe::serving {

/// The directory whose checkpoints a path means: that of a run, or `checkpoints` in it. Empty if the path is a
/// checkpoint itself. Links are resolved, since one such as runs/latest leads elsewhere when another run starts. Fails
/// with `errc::not_found` for a path that does not exist, unless it is waited for, and with `errc::io_error`.
[[nodiscard]] expected<std::filesystem::path> followed_directory(const std::filesystem::path& path, absent_run absent);

/// The newest checkpoint that a path means now, unread; nothing if the run has none yet. Fails as `followed_directory`,
/// and as listing the directory does.
[[nodiscard]] expected<std::optional<std::filesystem::path>> newest_checkpoint(const std::filesystem::path& path,
                                                                               absent_run absent);

} // namespace troupe::serving
