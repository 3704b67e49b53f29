#pragma once

#include <troupe/error.hpp>

#include <filesystem>

namespace troupe::serialization {

/// Whether no other user may use a file, such as one with a secret. Fails with `errc::not_authenticated`, saying what
/// to do, and if the file cannot be looked at.
[[nodiscard]] expected<void> check_private(const std::filesystem::path& file);

} // namespace troupe::serialization
