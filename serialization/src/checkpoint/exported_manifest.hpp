#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::serialization {

/// Key in `__metadata__`: the state's SHA-256 at the time of export.
inline constexpr std::string_view exported_state_key = "troupe.state_sha256";

/// A manifest without parts and chunks, as texts for a file's `__metadata__`.
[[nodiscard]] std::map<std::string, std::string> to_metadata(const manifest& content);

/// Whether `metadata` was made by `to_metadata`.
[[nodiscard]] bool is_exported(const std::map<std::string, std::string>& metadata);

/// The inverse of `to_metadata`, without parts and tensors. Missing keys leave default values. Fails with
/// `errc::unsupported_version`, or with `errc::damaged`, naming the key, for values that `to_metadata` does not write.
[[nodiscard]] expected<manifest> from_metadata(const std::map<std::string, std::string>& metadata);

/// The names of the tensors in the order in which they were tracked; empty if the metadata has no such list. Fails as
/// `from_metadata` does.
[[nodiscard]] expected<std::vector<std::string>> tracked_order(const std::map<std::string, std::string>& metadata);

} // namespace troupe::serialization
