#pragma once

#include <troupe/error.hpp>

#include <chrono>
#include <filesystem>
#include <string>

/// Names of run directories: fresh ones, old ones that make room, and the link to the latest.
namespace troupe::actors {

/// The name of the link to the run that was begun last.
inline constexpr auto latest_run = "latest";

/// The name of a run that is begun without one: "charlm-20261124-103712", in local time. Characters of `program` that a
/// run's name may not have become '_'.
[[nodiscard]] std::string fresh_run_name(const std::string& program, std::chrono::system_clock::time_point now);

/// Makes a directory in `storage_path` with a name as above, or with "-2", "-3", ... behind it if there is one already,
/// and returns the name: nobody else gets it. Where no directory can be made, it is left to whoever claims the
/// directory to say why.
[[nodiscard]] std::string reserve_run(const std::filesystem::path& storage_path, const std::string& program,
                                      std::chrono::system_clock::time_point now);

/// Renames a run's directory to `root.1`, or the next number that is free, and returns the new path. The old run can be
/// resumed under its new name. Fails with `errc::io_error`.
[[nodiscard]] expected<std::filesystem::path> move_run_aside(const std::filesystem::path& root);

/// Has the link `latest` beside `root` lead to it. What is there and is no link stays. Fails with `errc::io_error`,
/// where the file system has no links.
[[nodiscard]] expected<void> point_latest_to(const std::filesystem::path& root);

} // namespace troupe::actors
