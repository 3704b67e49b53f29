#include <troupe/actors/placement.hpp>

#include <algorithm>
#include <limits>
#include <numeric>

namespace troupe::actors {

namespace {

constexpr auto unlimited = std::numeric_limits<std::uint32_t>::max();

/// How many workers of this kind fit on a node by what they reserve.
std::uint32_t capacity(const resources& each, const resources& free) {
  auto result = unlimited;
  if (each.cpus > 0)
    result = std::min(result, free.cpus / each.cpus);
  if (each.gpus > 0)
    result = std::min(result, free.gpus / each.gpus);
  return result;
}

std::string plural(std::uint64_t n, const std::string& noun) {
  return std::to_string(n) + " " + noun + (n == 1 ? "" : "s");
}

std::string describe(const resources& x) {
  auto text = std::string{};
  if (x.cpus > 0)
    text += plural(x.cpus, "CPU");
  if (x.gpus > 0)
    text += (text.empty() ? "" : " and ") + plural(x.gpus, "GPU");
  return text;
}

error unsatisfiable(const scaling_config& request, std::span<const node_offer> offers) {
  const auto& each = request.resources_per_worker;
  auto total = resources{};
  auto fitting = std::uint64_t{0};
  auto list = std::string{};
  for (const auto& offer : offers) {
    total.cpus += offer.free.cpus;
    total.gpus += offer.free.gpus;
    fitting += capacity(each, offer.free);
    list += (list.empty() ? "" : ", ") + offer.address + ": " + plural(offer.free.cpus, "CPU") + ", " +
            plural(offer.free.gpus, "GPU");
  }
  return {errc::unsatisfiable,
          plural(request.num_workers, "worker") + " with " + describe(each) + " each need " +
              describe({each.cpus * request.num_workers, each.gpus * request.num_workers}) + "; the nodes offer " +
              plural(total.cpus, "CPU") + " and " + plural(total.gpus, "GPU") + " (" + list + "), which is room for " +
              plural(fitting, "worker") + ". Ask for fewer workers, reserve less for each, or add nodes"};
}

/// Fills nodes one after the other up to `limits`.
void pack(std::vector<std::uint32_t>& counts, std::uint32_t& left, std::span<const std::uint32_t> limits) {
  for (std::size_t node = 0; node < counts.size(); ++node) {
    auto take = std::min(left, limits[node] - std::min(counts[node], limits[node]));
    counts[node] += take;
    left -= take;
  }
}

/// Gives one to each node in turn while there is room.
void spread(std::vector<std::uint32_t>& counts, std::uint32_t& left, std::span<const std::uint32_t> limits) {
  for (auto progress = true; left > 0 && progress;) {
    progress = false;
    for (std::size_t node = 0; node < counts.size() && left > 0; ++node)
      if (counts[node] < limits[node]) {
        ++counts[node];
        --left;
        progress = true;
      }
  }
}

} // namespace

expected<placement_decision> place_workers(const scaling_config& request, std::span<const node_offer> offers) {
  const auto& each = request.resources_per_worker;
  if (offers.empty())
    return fail(errc::unsatisfiable, "no node to place workers on");
  std::vector<std::uint32_t> hard;
  std::vector<std::uint32_t> soft;
  for (const auto& offer : offers) {
    hard.push_back(capacity(each, offer.free));
    soft.push_back(std::min(hard.back(), std::max(offer.free.cpus, 1u)));
  }
  auto counts = std::vector<std::uint32_t>(offers.size());
  auto left = request.num_workers;
  if (request.placement == placement_strategy::pack)
    pack(counts, left, soft);
  spread(counts, left, hard);
  if (left > 0)
    return fail(unsatisfiable(request, offers));
  placement_decision result;
  auto rank = std::uint32_t{0};
  for (std::uint32_t node = 0; node < counts.size(); ++node) {
    for (std::uint32_t local = 0; local < counts[node]; ++local, ++rank)
      result.places.push_back({worker_id{rank}, rank_id{rank}, node, local, counts[node]});
    if (counts[node] > std::max(offers[node].free.cpus, 1u))
      result.warning += (result.warning.empty() ? "" : "; ") + plural(counts[node], "worker") + " share " +
                        plural(offers[node].free.cpus, "CPU") + " on " + offers[node].address;
  }
  return result;
}

} // namespace troupe::actors
