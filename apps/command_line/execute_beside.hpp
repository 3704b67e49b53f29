#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <string_view>

namespace troupe::apps {

/// The program of this name in this program's own directory.
[[nodiscard]] std::filesystem::path program_beside(std::string_view name);

/// Becomes the program at this path, which is its first argument instead of `argv[0]`. Returns if that fails, and why.
[[nodiscard]] error execute(const std::filesystem::path& program, char** argv);

} // namespace troupe::apps
