#pragma once

#include <troupe/inspect.hpp>

#include <compare>
#include <cstdint>

namespace troupe {

/// What a worker wants of a node, or what a node has. 0 CPUs in a request: takes part in no accounting.
struct resources {
  std::uint32_t cpus = 0;
  /// A worker may take a fraction: with 0.25, up to four of one run share a GPU. Above one, and on a node, whole ones.
  double gpus = 0;

  auto operator<=>(const resources&) const = default;
};

TROUPE_INSPECT(resources, cpus, gpus)

} // namespace troupe
