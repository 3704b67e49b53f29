#pragma once

#include <troupe/error.hpp>

#include <filesystem>
#include <utility>

namespace troupe::serialization {

/// The same error, and in which file it is.
[[nodiscard]] inline error of_file(const std::filesystem::path& path, error reason) {
  reason.message = path.string() + ": " + reason.message;
  return reason;
}

} // namespace troupe::serialization
