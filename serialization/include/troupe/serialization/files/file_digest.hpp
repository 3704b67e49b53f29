#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <string>

namespace troupe::serialization {

/// Identifies a file's content, for people and for comparison: "123 bytes, XXH3 0123456789abcdef". Reads it in pieces.
/// Fails with `errc::not_found` or `errc::io_error`.
[[nodiscard]] expected<std::string> describe_file(const std::filesystem::path& path);

} // namespace troupe::serialization
