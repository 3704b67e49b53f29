#pragma once

#include <troupe/error.hpp>
#include <troupe/member.hpp>

#include <string>
#include <vector>

/// What `troupe nodes` says about the members of a cluster.
namespace troupe::tool {

/// A line for each member, under a heading.
[[nodiscard]] std::string table_of(const std::vector<listed_member>& members);

/// The same as a JSON document.
[[nodiscard]] std::string json_of(const std::vector<listed_member>& members);

/// The address of the member that a user means: its HOST:PORT, or its host's name or address if one member alone has
/// it. Fails with `errc::not_found` or, if there are several, `errc::invalid_argument`.
[[nodiscard]] expected<std::string> find_member(const std::vector<listed_member>& members, const std::string& name);

} // namespace troupe::tool
