#pragma once

#include <troupe/inspect.hpp>

#include <compare>
#include <cstdint>

namespace troupe {

/// The resources that a worker requests of a node, or that a node offers. A request of 0 CPUs reserves none.
struct resources {
  std::uint32_t cpus = 0;
  /// A worker may take a fraction: with 0.25, up to four of one run share a GPU. Above one only whole numbers; nodes
  /// offer whole GPUs.
  double gpus = 0;

  auto operator<=>(const resources&) const = default;
};

TROUPE_INSPECT(resources, cpus, gpus)

} // namespace troupe
