#pragma once

#include <troupe/actors/decisions/placement.hpp>
#include <troupe/error.hpp>
#include <troupe/resources.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>

namespace troupe::actors {

/// What these workers take on each node, by index.
[[nodiscard]] std::map<std::uint32_t, resources> amounts_on_nodes(const resources& each,
                                                                  std::span<const worker_place> places);

/// Asks several nodes for leases: all grant them, or all get them back. A plain class.
class lease_round {
 public:
  explicit lease_round(std::map<std::uint32_t, resources> amounts) : amounts_(std::move(amounts)) {}

  /// What to ask of each node, at the beginning.
  [[nodiscard]] const std::map<std::uint32_t, resources>& amounts() const noexcept { return amounts_; }

  /// A node's answer; or the failure of the request, after which the node may still have granted it.
  void on_answer(std::uint32_t node, expected<void> answer);

  [[nodiscard]] bool is_over() const noexcept { return answered_.size() == amounts_.size(); }
  /// Once it is over: the first refusal. The leases of all nodes are then given back.
  [[nodiscard]] const std::optional<error>& refusal() const noexcept { return refusal_; }

 private:
  std::map<std::uint32_t, resources> amounts_;
  std::set<std::uint32_t> answered_;
  std::optional<error> refusal_;
};

} // namespace troupe::actors
