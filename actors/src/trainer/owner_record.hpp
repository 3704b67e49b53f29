#pragma once

#include <troupe/actors/decisions/mirror_owner.hpp>
#include <troupe/actors/mirror_storage.hpp>
#include <troupe/error.hpp>

#include <filesystem>
#include <optional>
#include <stop_token>

namespace troupe::actors {

/// The record `owner.json` at a run's mirror. Nothing if there is none that can be parsed; otherwise fails as the
/// mirror does. `scratch` is a directory for its copy.
[[nodiscard]] expected<std::optional<mirror_owner>>
read_owner(mirror_storage& mirror, const std::filesystem::path& scratch, const std::stop_token& stop);

/// Replaces it.
[[nodiscard]] expected<void> write_owner(mirror_storage& mirror, const std::filesystem::path& scratch,
                                         const mirror_owner& owner, const std::stop_token& stop);

} // namespace troupe::actors
