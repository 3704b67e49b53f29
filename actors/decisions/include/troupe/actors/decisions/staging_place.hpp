#pragma once

#include <troupe/messages/commands.hpp>
#include <troupe/messages/staging.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace troupe::actors {

/// The place of `rank` in the staging group that command `number` opens: the members, which are on the nodes `members`,
/// then the joiners. Other hosts reach the rank's host at `host_address`.
[[nodiscard]] staging_place place_in_staging_group(std::uint64_t number, const stage_command& command,
                                                   std::vector<node_ranks> members, rank_id rank,
                                                   const std::string& host_address);

} // namespace troupe::actors
