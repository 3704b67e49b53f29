#pragma once

#include <troupe/actors/mirror_storage.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <filesystem>
#include <optional>
#include <stop_token>
#include <string>

namespace troupe::actors {

/// Before the log `name` of the run's directory `root` replaces the mirror's: unless it extends that one, up to the
/// step `until`, copies that one to NAME.1, NAME.2, ... beside it. Returns its new name; empty if nothing is lost.
[[nodiscard]] expected<std::string> keep_mirrored_log(mirror_storage& mirror, const std::filesystem::path& root,
                                                      const std::string& name, std::optional<step_id> until,
                                                      const std::stop_token& stop);

} // namespace troupe::actors
