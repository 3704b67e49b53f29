#pragma once

#include <troupe/actors/decisions/placement.hpp>
#include <troupe/messages/regroup.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::actors {

/// The places of a generation's workers, and what each worker hears about them. Plain values.
class group_layout {
 public:
  group_layout() = default;

  /// `places` by rank; `addresses` of the nodes by index: where other hosts reach them.
  group_layout(std::vector<worker_place> places, std::vector<std::string> addresses, transport_kind transport);

  [[nodiscard]] const std::vector<worker_place>& places() const noexcept { return places_; }
  [[nodiscard]] std::uint32_t world_size() const noexcept { return static_cast<std::uint32_t>(places_.size()); }

  /// The nodes of the ranks, in their order.
  [[nodiscard]] const std::vector<node_ranks>& nodes() const noexcept { return ranks_of_nodes_; }

  /// The place of one of its workers; generation, attempt and reason are the caller's.
  [[nodiscard]] group_place place_of(const worker_place& who) const;

  /// torchrun's variables.
  [[nodiscard]] static bool is_launch_variable(std::string_view name) noexcept;
  [[nodiscard]] std::map<std::string, std::string> environment_of(const worker_place& who) const;

 private:
  /// Among the nodes that have workers.
  [[nodiscard]] std::uint32_t node_rank_of(const worker_place& who) const;

  std::vector<worker_place> places_;
  std::vector<std::string> addresses_;
  std::vector<std::uint32_t> used_nodes_;
  /// In the order of the ranks.
  std::vector<node_ranks> ranks_of_nodes_;
  transport_kind transport_ = transport_kind::self;
};

} // namespace troupe::actors
