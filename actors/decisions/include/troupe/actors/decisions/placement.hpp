#pragma once

#include <troupe/config/scaling.hpp>
#include <troupe/error.hpp>
#include <troupe/inspect.hpp>
#include <troupe/messages/node.hpp>

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

namespace troupe::actors {

/// Where one worker goes.
struct worker_place {
  worker_id worker;
  rank_id rank;
  /// Index into the offers.
  std::uint32_t node = 0;
  std::uint32_t local_rank = 0;
  std::uint32_t local_world_size = 0;

  bool operator==(const worker_place&) const = default;
};

TROUPE_INSPECT(worker_place, worker, rank, node, local_rank, local_world_size)

/// Where all workers go, and a warning for users.
struct placement_decision {
  /// By rank: the workers of a node have neighbouring ranks.
  std::vector<worker_place> places;
  /// Empty, or a warning such as shared CPUs.
  std::string warning;
};

/// Decides which node starts which worker. Pure. Workers that reserve no CPU fill a node up to its CPUs first (pack),
/// or are distributed evenly over all nodes (spread); they share CPUs if there are more workers than CPUs. For a range,
/// places as many workers as CPUs or reservations allow, and at least the minimum. Fails with `errc::unsatisfiable`,
/// naming what is missing. `most` limits the workers on each node, if it is not empty.
[[nodiscard]] expected<placement_decision> place_workers(const scaling_config& request,
                                                         std::span<const node_offer> offers,
                                                         std::span<const std::uint32_t> most = {});

/// A node's capacity for more workers.
struct node_capacity {
  resources capacity;
  /// Workers of this run on it.
  std::uint32_t workers = 0;
  /// Whether it can be reached, and does not go away.
  bool usable = true;
  /// How many more it should get while others have free CPUs.
  std::uint32_t most_more = std::numeric_limits<std::uint32_t>::max();
  /// How many it may have at all.
  std::uint32_t most = std::numeric_limits<std::uint32_t>::max();
};

/// The nodes, as indices, of up to `count` more workers, by the same rules. Fewer if there is less capacity. Pure.
[[nodiscard]] std::vector<std::uint32_t> place_more(const scaling_config& request, std::span<const node_capacity> nodes,
                                                    std::uint32_t count);

} // namespace troupe::actors
