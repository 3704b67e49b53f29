#pragma once

#include <troupe/error.hpp>

#include <chrono>
#include <filesystem>
#include <string>

/// Names of run directories: fresh ones, old ones that are moved aside, and the link to the latest.
namespace troupe::actors {

/// The name of the link to the run that began last.
inline constexpr auto latest_run = "latest";

/// The default name of a run: "charlm-20261124-103712", in local time. Characters of `program` that are not allowed in
/// a run's name become '_'.
[[nodiscard]] std::string fresh_run_name(const std::string& program, std::chrono::system_clock::time_point now);

/// Creates a directory in `storage_path` with a name as above, followed by "-2", "-3", ... if that exists, and returns
/// the name, which no other caller gets. Ignores errors: claiming the directory reports them.
[[nodiscard]] std::string reserve_run(const std::filesystem::path& storage_path, const std::string& program,
                                      std::chrono::system_clock::time_point now);

/// Renames a run's directory to `root.1`, or the next free number, and returns the new path. The old run can be resumed
/// under its new name. Fails with `errc::io_error`.
[[nodiscard]] expected<std::filesystem::path> move_run_aside(const std::filesystem::path& root);

/// Points the link `latest` beside `root` to it. An existing file that is not a link stays. Fails with
/// `errc::io_error`, also if the file system has no links.
[[nodiscard]] expected<void> point_latest_to(const std::filesystem::path& root);

} // namespace troupe::actors
