#pragma once

#include <troupe/actors/decisions/group_layout.hpp>
#include <troupe/actors/decisions/placement.hpp>
#include <troupe/actors/decisions/run_actions.hpp>
#include <troupe/config/run.hpp>
#include <troupe/config/scaling.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>
#include <troupe/messages/regroup.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// The places of the workers in the current generation, the transport of their gradients, and the messages about these
/// to nodes and workers. A plain class.
class run_layout {
 public:
  /// Whether workers fall back to another transport where the configured one is impossible.
  enum class fallback : std::uint8_t { no, yes };

  run_layout() = default;
  run_layout(const scaling_config& scaling, transport_mode transport)
      : shards_(scaling.shards), each_(resources_of_worker(scaling)), mode_(transport) {}

  /// Sets new places, by rank; `addresses` are those at which other hosts reach the nodes, by index. Returns a notice
  /// if the transport has changed, or nothing. Fails with `errc::invalid_argument` if the configured transport is
  /// impossible there.
  [[nodiscard]] expected<std::string> lay_out(std::vector<worker_place> places, std::vector<std::string> addresses,
                                              fallback otherwise);

  [[nodiscard]] const std::vector<worker_place>& places() const noexcept { return layout_.places(); }
  [[nodiscard]] std::uint32_t world_size() const noexcept { return layout_.world_size(); }
  [[nodiscard]] bool uses_node(std::uint32_t node) const;

  /// A warning if the workers have very unequal numbers of shards, or nothing.
  [[nodiscard]] std::string uneven_shards() const;

  /// What each node gets to start workers in these places, which need not be members.
  [[nodiscard]] std::map<std::uint32_t, start_workers> start_messages(const run_id& run,
                                                                      const std::vector<std::string>& arguments,
                                                                      const std::vector<worker_place>& places) const;

  /// A member's place in the generation.
  [[nodiscard]] group_place place_of(const worker_place& who, generation_id generation, std::uint32_t attempt,
                                     const std::string& reason) const;

  /// The place of a joiner in a staging group. Other hosts reach the joiner's host at `host_address`.
  [[nodiscard]] staging_place place_of(const stage_joiners& group, rank_id joiner,
                                       const std::string& host_address) const;

  /// The messages to the members of a new generation, by rank.
  [[nodiscard]] std::vector<std::pair<worker_id, member_place>> member_places(const form_generation& next) const;

 private:
  std::uint32_t shards_ = 1;
  /// What each worker takes.
  resources each_;
  transport_mode mode_ = transport_mode::automatic;
  transport_kind transport_ = transport_kind::self;
  group_layout layout_;
  std::vector<std::string> addresses_;
};

} // namespace troupe::actors
