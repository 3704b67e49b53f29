#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <fmt/format.h>

namespace troupe::serialization {

/// The same error with the file's path in front.
[[nodiscard]] inline error of_file(const std::filesystem::path& path, error reason) {
  reason.message = fmt::format("{}: {}", path.string(), reason.message);
  return reason;
}

} // namespace troupe::serialization
