#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/files/file_system.hpp>

#include <filesystem>
#include <string_view>

namespace troupe::serialization {

/// Replaces the file at `path` by one that holds `text`, or leaves it untouched: after a crash at any point there is
/// the old file or the new one, whole. Returns once the new one is on the device (temporary name in the same directory,
/// fsync, rename, fsync of the directory); a crash may leave that name, ".<name>.<digits>.tmp". The directory must
/// exist. Fails with `errc::io_error` or `errc::not_found`.
[[nodiscard]] expected<void> write_file_durably(const std::filesystem::path& path, std::string_view text,
                                                file_system& files = local_files());

/// Makes `path` and whatever is missing above it, and returns once the entries are on the device. Harmless when it
/// exists and when several processes do it at once. Fails with `errc::io_error`.
[[nodiscard]] expected<void> create_directories_durably(const std::filesystem::path& path,
                                                        file_system& files = local_files());

} // namespace troupe::serialization
