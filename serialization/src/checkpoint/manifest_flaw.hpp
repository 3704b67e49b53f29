#pragma once

#include <troupe/serialization/checkpoint/manifest.hpp>

#include <optional>
#include <string>

namespace troupe::serialization {

/// What a manifest says that cannot be; nothing for a sound one. Sound means: every tensor's chunks add up to its size
/// and lie inside of their parts.
[[nodiscard]] std::optional<std::string> find_flaw(const manifest& content);

} // namespace troupe::serialization
