#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <string>

namespace troupe::tool {

/// Writes a picture as PNG, twice as large as the SVG says, by `rsvg-convert` of librsvg. Fails with `errc::not_found`
/// where that is not installed, and with `errc::io_error` if it fails.
[[nodiscard]] expected<void> write_png(const std::string& svg, const std::filesystem::path& file);

} // namespace troupe::tool
