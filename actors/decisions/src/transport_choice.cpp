#include <troupe/actors/decisions/transport_choice.hpp>

#include <troupe/actors/decisions/plural.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace troupe::actors {

namespace {

/// How many workers of a node the control blocks of shared memory have capacity for.
constexpr std::size_t most_sharing = 256;

/// Why they cannot use shared memory.
std::string too_many(std::size_t on_one_node) {
  return fmt::format("{} on a node are more than can share memory ({})", plural(on_one_node, "worker"), most_sharing);
}

} // namespace

expected<transport_choice> choose_transport(transport_mode mode, std::span<const worker_place> places) {
  std::map<std::uint32_t, std::size_t> on_node;
  for (const auto& place : places)
    ++on_node[place.node];
  std::size_t most = 0;
  for (const auto& [node, count] : on_node)
    most = std::max(most, count);
  if (places.size() == 1)
    return transport_choice{transport_kind::self, "nothing: there is one worker"};
  const auto where = plural(places.size(), "worker") + " on " + plural(on_node.size(), "node");
  switch (mode) {
  case transport_mode::tcp:
    return transport_choice{transport_kind::tcp, "TCP, as asked for: " + where};
  case transport_mode::shm:
    if (on_node.size() > 1)
      return fail(
          errc::invalid_argument,
          fmt::format("the workers are on {} nodes and share no memory: leave run.transport to itself, or set it "
                      "to hierarchical",
                      on_node.size()));
    if (most > most_sharing)
      break;
    return transport_choice{transport_kind::shm, "shared memory, as asked for: " + where};
  case transport_mode::hierarchical:
    if (on_node.size() == 1)
      return fail(
          errc::invalid_argument,
          "all workers are on one node, so no transport between nodes is needed: leave run.transport to itself, "
          "or set it to shm");
    if (most > most_sharing)
      break;
    return transport_choice{transport_kind::hierarchical,
                            "shared memory inside a node and TCP between nodes, as asked for: " + where};
  case transport_mode::automatic:
  case transport_mode::nccl:
    if (most > most_sharing)
      return transport_choice{transport_kind::tcp, "TCP: " + too_many(most)};
    if (on_node.size() == 1)
      return transport_choice{transport_kind::shm, "shared memory: " + where};
    if (most == 1)
      return transport_choice{transport_kind::tcp, "TCP: " + where};
    return transport_choice{transport_kind::hierarchical,
                            "shared memory inside a node and TCP between nodes: " + where};
  }
  return fail(errc::invalid_argument, too_many(most) + ": set run.transport to tcp");
}

expected<device_transport_choice> choose_device_transport(gpu_gradients mode,
                                                          std::span<const collectives::device_offer> ranks) {
  if (ranks.size() <= 1)
    return device_transport_choice{device_transport::self, "nothing: there is one worker"};
  if (mode == gpu_gradients::by_host)
    return device_transport_choice{device_transport::staged, "the host's memory, as run.transport asks for"};
  const auto is_forced = mode == gpu_gradients::by_nccl;
  // If NCCL is asked for by name, NCCL itself decides whether ranks may share a GPU.
  for (std::size_t i = 0; i < ranks.size() && !is_forced; ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (ranks[i].device == ranks[k].device)
        return device_transport_choice{device_transport::staged,
                                       fmt::format("the host's memory: ranks {} and {} share a GPU", k, i)};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].nccl == ranks[0].nccl && !ranks[i].nccl.empty())
      continue;
    const auto why = ranks[i].nccl.empty()
                         ? fmt::format("rank {} has no NCCL", i)
                         : fmt::format("rank 0 has {} and rank {} {}", ranks[0].nccl, i, ranks[i].nccl);
    if (is_forced)
      return fail(errc::unsatisfiable,
                  "run.transport is nccl, and " + why +
                      ": install NCCL in one version on all hosts, or leave run.transport to itself");
    return device_transport_choice{device_transport::staged, "the host's memory: " + why};
  }
  return device_transport_choice{device_transport::nccl, fmt::format("{}{}: {} workers with a GPU each", ranks[0].nccl,
                                                                     is_forced ? ", as asked for" : "", ranks.size())};
}

} // namespace troupe::actors
