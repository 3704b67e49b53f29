#pragma once

#include <troupe/serialization/checkpoint/manifest.hpp>

#include <optional>
#include <string>

namespace troupe::serialization {

/// The first inconsistency of a manifest; `nullopt` if it is valid, that is, if every tensor's chunks add up to its
/// size and lie within their parts.
[[nodiscard]] std::optional<std::string> find_flaw(const manifest& content);

} // namespace troupe::serialization
