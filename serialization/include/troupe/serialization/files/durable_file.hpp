#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/files/file_system.hpp>

#include <filesystem>
#include <functional>
#include <string_view>

namespace troupe::serialization {

/// Atomically replaces or creates the file at `path` with the content `text`: after a crash at any point, the complete
/// old or the complete new file exists. Returns once the new file is on the device (temporary name in the same
/// directory, fsync, rename, fsync of the directory). A crash may leave the temporary file ".<name>.<digits>.tmp". The
/// directory must exist. Fails with `errc::io_error` or `errc::not_found`.
[[nodiscard]] expected<void> write_file_durably(const std::filesystem::path& path, std::string_view text,
                                                file_system& files = local_files());

/// The same for content that `source` passes to the sink in pieces. Fails as `source` does, too, and then leaves the
/// old file.
using text_sink = std::function<expected<void>(std::string_view piece)>;
[[nodiscard]] expected<void> write_file_durably(const std::filesystem::path& path,
                                                const std::function<expected<void>(const text_sink&)>& source,
                                                file_system& files = local_files());

/// Creates `path` and its missing parents, and returns once the entries are on the device. Idempotent, also when
/// several processes do it at once. Fails with `errc::io_error`.
[[nodiscard]] expected<void> create_directories_durably(const std::filesystem::path& path,
                                                        file_system& files = local_files());

} // namespace troupe::serialization
