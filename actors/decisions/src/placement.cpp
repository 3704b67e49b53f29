#include <troupe/actors/decisions/placement.hpp>

#include <troupe/actors/decisions/plural.hpp>
#include <troupe/actors/decisions/resource_sums.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <tuple>

namespace troupe::actors {

namespace {

std::uint32_t limit_of(std::span<const std::uint32_t> most, std::size_t node) {
  return most.empty() ? std::numeric_limits<std::uint32_t>::max() : most[node];
}

error unsatisfiable(const scaling_config& request, std::span<const node_offer> offers,
                    std::span<const std::uint32_t> most) {
  const auto each = resources_of_worker(request);
  resources total;
  auto fitting = 0.0;
  auto list = std::string{};
  for (std::size_t i = 0; i < offers.size(); ++i) {
    const auto& offer = offers[i];
    total = sum(total, offer.free);
    fitting += std::min(count_fitting(each, offer.free), limit_of(most, i));
    list += fmt::format("{}{}: {}{}", list.empty() ? "" : ", ", offer.address, describe_kinds(offer.free, each),
                        most.empty() ? "" : ", at most " + plural(limit_of(most, i), "worker"));
  }
  const auto least = request.num_workers.min;
  const auto needed = resources_of(each, least);
  const auto is_without_gpus = each.gpus > 0 && total.gpus == 0;
  const auto advice = is_without_gpus
                          ? "A node offers the GPUs that it has a device file of (/dev/nvidia0, ...), as far as its "
                            "CUDA_VISIBLE_DEVICES leaves them: start one where nvidia-smi lists GPUs"
                          : "Ask for fewer workers, reserve less for each, or add nodes";
  const auto nodes = fmt::format("({}), which is capacity for {}. {}", list, plural(fitting, "worker"), advice);
  const auto workers = plural(least, "worker");
  if (request.placement == placement_strategy::strict_spread)
    return {errc::unsatisfiable,
            fmt::format("{} are to be on nodes of their own (strict_spread), and {} can take one {}", workers,
                        plural(offers.size(), "node"), nodes)};
  if (request.placement == placement_strategy::strict_pack && fitting >= least)
    return {errc::unsatisfiable,
            fmt::format("{} are to be on one node (strict_pack), and none has capacity for all {}", workers, nodes)};
  if (is_nothing(each))
    return {errc::unsatisfiable, fmt::format("{} do not fit into the slots of the nodes {}", workers, nodes)};
  return {errc::unsatisfiable,
          fmt::format("{} with {} {} {}; the nodes offer {} {}", workers, describe(each),
                      least == 1 ? "needs" : "each need", describe(needed), describe_kinds(total, each), nodes)};
}

/// How many workers may be on each node, and how many fit without sharing CPUs. Workers that have GPUs compute there,
/// and may share CPUs.
struct limits {
  std::vector<std::uint32_t> hard;
  std::vector<std::uint32_t> soft;
};

limits limits_of(const scaling_config& request, std::span<const node_capacity> nodes) {
  limits result;
  const auto each = resources_of_worker(request);
  for (const auto& node : nodes) {
    auto hard = node.usable ? std::min(count_fitting(each, node.capacity), node.most) : 0;
    if (request.placement == placement_strategy::strict_spread)
      hard = std::min(hard, 1u);
    result.hard.push_back(hard);
    result.soft.push_back(each.gpus > 0 ? hard : std::min(hard, std::max(node.capacity.cpus, 1u)));
  }
  return result;
}

bool is_avoided(const node_capacity& node) {
  return node.most_more < std::numeric_limits<std::uint32_t>::max();
}

/// Adds `left` workers to `counts`, up to `most` on each node; returns how many found no place. `pack` fills one node
/// after the other; else each goes to the node with the fewest.
std::uint32_t fill(std::vector<std::uint32_t>& counts, std::uint32_t left, std::span<const std::uint32_t> most,
                   bool pack) {
  for (; left > 0; --left) {
    auto best = counts.size();
    for (std::size_t node = 0; node < counts.size(); ++node)
      if (counts[node] < most[node] && (best == counts.size() || (!pack && counts[node] < counts[best])))
        best = node;
    if (best == counts.size())
      break;
    ++counts[best];
  }
  return left;
}

/// Adds workers beyond the number of CPUs, each to the node with the lowest load.
std::uint32_t share(std::vector<std::uint32_t>& counts, std::uint32_t left, std::span<const std::uint32_t> most,
                    std::span<const node_capacity> nodes) {
  auto load = [&](std::size_t node) {
    return (counts[node] + 1.0) / static_cast<double>(std::max(nodes[node].capacity.cpus, 1u));
  };
  for (; left > 0; --left) {
    auto best = counts.size();
    for (std::size_t node = 0; node < counts.size(); ++node)
      if (counts[node] < most[node] && (best == counts.size() || load(node) < load(best)))
        best = node;
    if (best == counts.size())
      break;
    ++counts[best];
  }
  return left;
}

/// Puts all on one node: the one where some are already, else the first that has capacity for all. A range takes what
/// is there.
std::uint32_t fill_one_node(const scaling_config& request, std::vector<std::uint32_t>& counts, std::uint32_t left,
                            const limits& most) {
  const auto there = std::accumulate(counts.begin(), counts.end(), 0u);
  const auto elastic = request.num_workers.is_elastic();
  for (const auto* limit : {&most.soft, &most.hard})
    for (std::size_t node = 0; node < counts.size() && (limit == &most.soft || !elastic); ++node)
      if (counts[node] == there && (*limit)[node] >= there + left) {
        counts[node] += left;
        return 0;
      }
  if (there == 0 && !elastic)
    return left;
  auto capacity = [&](std::size_t node) {
    auto fits =
        elastic ? std::max(most.soft[node], std::min(most.hard[node], request.num_workers.min)) : most.hard[node];
    return counts[node] == there && fits > there ? fits - there : 0;
  };
  auto best = std::size_t{0};
  for (std::size_t node = 1; node < counts.size(); ++node)
    if (capacity(node) > capacity(best))
      best = node;
  auto add = std::min(left, capacity(best));
  counts[best] += add;
  return left - add;
}

/// Returns how many found no place.
std::uint32_t distribute(const scaling_config& request, std::span<const node_capacity> nodes, std::uint32_t count,
                         std::vector<std::uint32_t>& counts) {
  auto most = limits_of(request, nodes);
  if (request.placement == placement_strategy::strict_pack)
    return fill_one_node(request, counts, count, most);
  const auto elastic = request.num_workers.is_elastic();
  if (request.placement != placement_strategy::pack && !elastic)
    return fill(counts, count, most.hard, false);
  auto left = fill(counts, count, most.soft, request.placement == placement_strategy::pack);
  if (!elastic)
    return share(counts, left, most.hard, nodes);
  // A range takes what is free, and shares CPUs only to reach its least number.
  auto there = std::accumulate(counts.begin(), counts.end(), 0u);
  auto lacking = std::min(left, request.num_workers.min - std::min(there, request.num_workers.min));
  return left - (lacking - share(counts, lacking, most.hard, nodes));
}

} // namespace

expected<placement_decision> place_workers(const scaling_config& request, std::span<const node_offer> offers,
                                           std::span<const std::uint32_t> most) {
  if (offers.empty())
    return fail(errc::unsatisfiable, "no node to place workers on");
  std::vector<node_capacity> nodes;
  for (std::size_t i = 0; i < offers.size(); ++i)
    nodes.push_back({.capacity = offers[i].free, .most = limit_of(most, i)});
  auto counts = std::vector<std::uint32_t>(offers.size());
  auto wanted = request.num_workers.max;
  auto left = distribute(request, nodes, wanted, counts);
  if (wanted - left < request.num_workers.min)
    return fail(unsatisfiable(request, offers, most));
  placement_decision result;
  auto rank = std::uint32_t{0};
  for (std::uint32_t node = 0; node < counts.size(); ++node) {
    for (std::uint32_t local = 0; local < counts[node]; ++local, ++rank)
      result.places.push_back({worker_id{rank}, rank_id{rank}, node, local, counts[node]});
    if (counts[node] > std::max(offers[node].free.cpus, 1u))
      result.warning +=
          fmt::format("{}{} share {} on {}", result.warning.empty() ? "" : "; ", plural(counts[node], "worker"),
                      plural(offers[node].free.cpus, "CPU"), offers[node].address);
  }
  return result;
}

std::vector<std::uint32_t> place_more(const scaling_config& request, std::span<const node_capacity> nodes,
                                      std::uint32_t count) {
  std::vector<std::uint32_t> before;
  for (const auto& node : nodes)
    before.push_back(node.workers);
  auto counts = before;
  auto left = count;
  if (request.placement != placement_strategy::strict_pack && std::ranges::any_of(nodes, is_avoided)) {
    auto most = limits_of(request, nodes).soft;
    for (std::size_t node = 0; node < most.size(); ++node)
      most[node] = std::min<std::uint64_t>(most[node], std::uint64_t{before[node]} + nodes[node].most_more);
    left = fill(counts, count, most, request.placement == placement_strategy::pack);
  }
  std::ignore = distribute(request, nodes, left, counts);
  std::vector<std::uint32_t> result;
  for (std::uint32_t node = 0; node < counts.size(); ++node)
    result.insert(result.end(), counts[node] - before[node], node);
  return result;
}

} // namespace troupe::actors
