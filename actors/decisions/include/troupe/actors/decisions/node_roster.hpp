#pragma once

#include <troupe/actors/decisions/node_health.hpp>
#include <troupe/actors/decisions/placement.hpp>
#include <troupe/config/scaling.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace troupe::actors {

enum class node_state : std::uint8_t {
  /// There is no connection, or it does not answer.
  away,
  /// It is being connected to.
  dialling,
  /// It was asked for its offer.
  asked,
  offered,
  /// It opens the program.
  opening,
  /// It can take workers.
  open,
  /// It will not take this run.
  refused,
  /// It takes no more workers, and goes away.
  leaving,
  /// It was open, and says nothing now. Its workers may live.
  silent,
  /// It was open, and its connection is gone. Its workers may live.
  cut,
  /// Given up because it could not be reached. If it answers again, it must first end its workers of this run.
  fenced,
};

/// Whether a node in this state cannot be asked for anything.
[[nodiscard]] constexpr bool is_away(node_state state) noexcept {
  return state == node_state::away || state == node_state::dialling || state == node_state::silent ||
         state == node_state::cut || state == node_state::fenced;
}

/// One node of a run, as the trainer sees it.
struct known_node {
  using clock = std::chrono::steady_clock;

  /// As configured; empty for the driver's own.
  std::string address;
  node_offer offer = {};
  node_state state = node_state::away;
  /// When it was last dialled or lost; the epoch if never.
  clock::time_point tried = {};
  node_health health = {};
  /// How many workers of the run it may have.
  std::uint32_t most_workers = node_health::any_number;
  /// Whether it is worth dialling: a member that its cluster does not list as usable is not.
  bool is_wanted = true;
};

/// The nodes of a run: which of them can take workers, which to dial again, between which gradients may travel. A plain
/// class; the connections are in `node_links`.
class node_roster {
 public:
  struct settings {
    scaling_config scaling;
    /// Whether gradients may travel between the node with this address and others, as the run sends them.
    std::function<bool(const std::string&)> is_private;
    /// How often a node that is away is tried again.
    std::chrono::milliseconds try_every;
    /// The same for a node whose workers may still be members.
    std::chrono::milliseconds reconnect_every;
  };

  explicit node_roster(settings how) : how_(std::move(how)) {}

  /// How many workers the next placement is for.
  void resize_run(worker_range workers) { how_.scaling.num_workers = workers; }

  void add(std::string address, std::uint32_t most_workers = node_health::any_number) {
    nodes_.push_back({.address = std::move(address), .most_workers = most_workers});
  }

  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(nodes_.size()); }
  [[nodiscard]] known_node& operator[](std::uint32_t index) { return nodes_[index]; }
  [[nodiscard]] const known_node& operator[](std::uint32_t index) const { return nodes_[index]; }

  /// The node that is configured so; nothing if there is none.
  [[nodiscard]] std::optional<std::uint32_t> find(const std::string& address) const;

  /// The nodes in this state, as indices. Of those that have made an offer only the wanted ones: the others get no
  /// workers.
  [[nodiscard]] std::vector<std::uint32_t> in_state(node_state state) const;

  /// Whether a node's answer is awaited that decides which nodes can be used.
  [[nodiscard]] bool awaits_answers() const;

  /// The nodes to try again now: those that are away, cut or fenced.
  [[nodiscard]] std::vector<std::uint32_t> to_try(known_node::clock::time_point now) const;

  /// As `place_workers`, over the nodes in one state. The places name nodes of this roster, and workers from
  /// `first_worker` on.
  [[nodiscard]] expected<placement_decision> place(node_state state, worker_id first_worker) const;
  /// Whether the nodes that have made an offer could take the workers if no other run had anything; if so, who has
  /// what, for people.
  [[nodiscard]] std::optional<std::string> busy_with() const;

  /// The capacity left by the workers that have a place. If gradients may not travel between nodes, only nodes that
  /// already have workers have capacity.
  [[nodiscard]] std::vector<node_capacity> capacities(std::span<const worker_place> occupied,
                                                      known_node::clock::time_point now) const;

  /// Which nodes to check: only those in the places, or at the start of an elastic run all that have made an offer.
  enum class spread : std::uint8_t { places, offers };

  /// Whether these nodes may send each other gradients: `errc::invalid_argument`, naming the node and what to say in
  /// the configuration, if not.
  [[nodiscard]] expected<void> check_data_plane(std::span<const worker_place> places, spread over) const;

  /// Where each node can be reached by the others.
  [[nodiscard]] std::vector<std::string> data_addresses() const;

 private:
  /// Whether the run may use it.
  [[nodiscard]] bool has_labels(const known_node& node) const;
  [[nodiscard]] error no_labels() const;

  settings how_;
  std::vector<known_node> nodes_;
};

} // namespace troupe::actors
