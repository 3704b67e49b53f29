#pragma once

#include <troupe/error.hpp>
#include <troupe/member.hpp>

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

/// What is said about a cluster's members: texts, which are JSON objects, each preceded by its length (u32,
/// big-endian). A client asks, the node answers, any number of times. A text may have bytes, which follow the object
/// after a zero, and count as its "data". Fields that one end does not know are ignored, so that nodes of different
/// versions of Troupe can list each other.
///
///   {"ask": "beat", "self": MEMBER, "entry": BOOL, "members": [MEMBER]}   by a node, to an entry node, once a second
///   {"ask": "members"}, {"ask": "drain", "patience_ms": N}, {"ask": "resume"}   by a driver or tool
///
/// An answer is {"self": MEMBER, "members": [...], "entries": ["HOST:PORT"]} or {"code": N, "message": TEXT}. To a
/// beat, members are for an entry node alone, and as they say themselves; else they are LISTED, with "silent" and
/// "silent_ms". "entries" are the entry nodes that the answering node has joined, if it is none itself.
namespace troupe::runtime {

inline constexpr std::size_t member_header_bytes = 4;
/// The longest text.
inline constexpr std::size_t member_text_bytes = std::size_t{8} << 20;

/// For the "data" of a text.
[[nodiscard]] nlohmann::json as_data(std::string_view bytes);
/// The "data" of a text; empty without.
[[nodiscard]] std::string_view data_of(const nlohmann::json& text);

/// A text with its length in front.
[[nodiscard]] std::string frame(const nlohmann::json& text);

/// The length that a header announces. Fails with `errc::invalid_argument` for one that is too long.
[[nodiscard]] expected<std::size_t> text_size(std::string_view header);

/// Fails with `errc::invalid_argument` for a text that is no JSON object, with or without bytes.
[[nodiscard]] expected<nlohmann::json> parse_text(std::string_view text);

[[nodiscard]] nlohmann::json describe(const cluster_member& member);
[[nodiscard]] nlohmann::json describe(const listed_member& member);

/// Fail with `errc::invalid_argument` for what no node says of itself (see `validate`).
[[nodiscard]] expected<cluster_member> parse_member(const nlohmann::json& text);
[[nodiscard]] expected<listed_member> parse_listed(const nlohmann::json& text);

/// The error in an answer; code `none` if it is none.
[[nodiscard]] error error_in(const nlohmann::json& answer);

} // namespace troupe::runtime
