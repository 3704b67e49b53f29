#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/manifest.hpp>

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::serialization {

/// Key of `__metadata__`: the state's SHA-256 when it was exported.
inline constexpr std::string_view exported_state_key = "troupe.state_sha256";

/// What a manifest says, but for parts and chunks, as texts for a file's `__metadata__`.
[[nodiscard]] std::map<std::string, std::string> to_metadata(const manifest& content);

/// Whether `to_metadata` made these.
[[nodiscard]] bool is_exported(const std::map<std::string, std::string>& metadata);

/// The manifest again, without parts and tensors. What is missing is as in a manifest that says nothing. Fails with
/// `errc::unsupported_version`, or with `errc::damaged`, naming the key, for what `to_metadata` does not write.
[[nodiscard]] expected<manifest> from_metadata(const std::map<std::string, std::string>& metadata);

/// The names of the tensors in the order in which they were tracked; empty if the texts do not tell. Fails as
/// `from_metadata` does.
[[nodiscard]] expected<std::vector<std::string>> tracked_order(const std::map<std::string, std::string>& metadata);

} // namespace troupe::serialization
