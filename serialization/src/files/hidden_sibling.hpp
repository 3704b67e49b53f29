#pragma once

#include <troupe/serialization/files/digest.hpp>

#include <filesystem>
#include <fmt/format.h>
#include <string_view>

namespace troupe::serialization {

/// An unused path ".<name>.<random digits><suffix>" in the same directory, for what is renamed to `path` once complete.
[[nodiscard]] inline std::filesystem::path hidden_sibling(const std::filesystem::path& path, std::string_view suffix) {
  return path.parent_path() / fmt::format(".{}.{}{}", path.filename().string(), random_hex(8), suffix);
}

} // namespace troupe::serialization
