#pragma once

#include <troupe/inspect.hpp>

#include <cstdint>
#include <map>
#include <string>

namespace troupe {

/// The resources that a worker requests of a node, or that a node offers. A request of 0 reserves none of that kind.
struct resources {
  std::uint32_t cpus = 0;
  /// A worker may take a fraction: with 0.25, up to four of one run share a GPU. Above one only whole numbers; nodes
  /// offer whole GPUs.
  double gpus = 0;
  /// Counted, not enforced.
  std::uint64_t memory_bytes = 0;
  /// Others by name, such as licences: what a node was given by `caf-node --resource NAME=N`.
  std::map<std::string, std::uint64_t> custom = {};

  bool operator==(const resources&) const = default;
};

TROUPE_INSPECT(resources, cpus, gpus, memory_bytes, custom)

} // namespace troupe
