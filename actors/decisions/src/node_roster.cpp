#include <troupe/actors/decisions/node_roster.hpp>

#include <troupe/actors/decisions/node_labels.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace troupe::actors {

std::optional<std::uint32_t> node_roster::find(const std::string& address) const {
  const auto i = std::ranges::find(nodes_, address, &known_node::address);
  return i == nodes_.end() ? std::nullopt : std::optional{static_cast<std::uint32_t>(i - nodes_.begin())};
}

std::vector<std::uint32_t> node_roster::in_state(node_state state) const {
  std::vector<std::uint32_t> result;
  for (std::uint32_t i = 0; i < size(); ++i)
    if (nodes_[i].state == state && (nodes_[i].is_wanted || state != node_state::offered))
      result.push_back(i);
  return result;
}

bool node_roster::awaits_answers() const {
  // One that did not answer is dialled again and again, which nothing waits for.
  return std::ranges::any_of(nodes_, [](const known_node& x) {
    const auto is_first = x.state == node_state::dialling && x.tried == known_node::clock::time_point{};
    return x.state == node_state::asked || is_first;
  });
}

std::vector<std::uint32_t> node_roster::to_try(known_node::clock::time_point now) const {
  std::vector<std::uint32_t> result;
  for (std::uint32_t i = 0; i < size(); ++i) {
    const auto& node = nodes_[i];
    const auto is_cut = node.state == node_state::cut;
    const auto is_gone = node.state == node_state::away || node.state == node_state::fenced;
    if (now - node.tried > (is_cut ? how_.reconnect_every : how_.try_every) && (is_cut || (is_gone && node.is_wanted)))
      result.push_back(i);
  }
  return result;
}

bool node_roster::has_labels(const known_node& node) const {
  return actors::has_labels(node.offer.labels, how_.scaling.node_labels);
}

error node_roster::no_labels() const {
  return {errc::unsatisfiable,
          fmt::format("no node has the labels {} (scaling.node_labels): start one with caf-node --label",
                      describe(how_.scaling.node_labels))};
}

expected<placement_decision> node_roster::place(node_state state, worker_id first_worker) const {
  auto indices = in_state(state);
  const auto is_empty = indices.empty();
  std::erase_if(indices, [this](std::uint32_t i) { return !has_labels(nodes_[i]); });
  if (indices.empty() && !is_empty)
    return fail(no_labels());
  std::vector<node_offer> offers;
  std::vector<std::uint32_t> most;
  for (auto i : indices) {
    offers.push_back(nodes_[i].offer);
    most.push_back(nodes_[i].most_workers);
  }
  auto decision = place_workers(how_.scaling, offers, most);
  if (decision)
    for (auto& place : decision->places) {
      place.node = indices[place.node];
      place.worker.value += first_worker.value;
    }
  return decision;
}

std::optional<std::string> node_roster::busy_with() const {
  std::vector<node_offer> offers;
  std::string holders;
  for (auto i : in_state(node_state::offered)) {
    if (!has_labels(nodes_[i]))
      continue;
    offers.push_back(nodes_[i].offer);
    offers.back().free = offers.back().capacity;
    if (!nodes_[i].offer.holders.empty())
      holders +=
          fmt::format("{}on {} {}", holders.empty() ? "" : "; ", nodes_[i].offer.address, nodes_[i].offer.holders);
  }
  if (holders.empty() || !place_workers(how_.scaling, offers))
    return std::nullopt;
  return holders;
}

std::vector<node_capacity> node_roster::capacities(std::span<const worker_place> occupied,
                                                   known_node::clock::time_point now) const {
  std::vector<node_capacity> result;
  for (const auto& node : nodes_)
    result.push_back({node.offer.free, 0,
                      node.state == node_state::open && node.health.takes_workers() && has_labels(node),
                      node.health.most_more(now), node.most_workers});
  for (const auto& place : occupied)
    ++result[place.node].workers;
  for (std::uint32_t i = 0; i < size(); ++i)
    for (std::uint32_t other = 0; other < size(); ++other)
      if (other != i && result[other].workers > 0 &&
          (!how_.is_private(nodes_[i].offer.address) || !how_.is_private(nodes_[other].offer.address)))
        result[i].usable = false;
  return result;
}

expected<void> node_roster::check_data_plane(std::span<const worker_place> places, spread over) const {
  std::set<std::uint32_t> used;
  for (const auto& place : places)
    used.insert(place.node);
  if (over == spread::offers && how_.scaling.num_workers.is_elastic())
    for (std::uint32_t i = 0; i < size(); ++i)
      if (!nodes_[i].offer.address.empty())
        used.insert(i);
  if (used.size() < 2)
    return {};
  for (auto i : used)
    if (!how_.is_private(nodes_[i].offer.address))
      return fail(
          errc::invalid_argument,
          fmt::format("NCCL sends gradients in clear text, and {} is not this machine: leave run.transport to itself, "
                      "or, if the network is private or a tunnel, say so with cluster.trusted_network "
                      "(--trusted-network)",
                      nodes_[i].offer.address));
  return {};
}

std::vector<std::string> node_roster::data_addresses() const {
  std::vector<std::string> result;
  for (const auto& node : nodes_)
    result.push_back(node.offer.address);
  return result;
}

} // namespace troupe::actors
