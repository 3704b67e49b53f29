#pragma once

#include <troupe/error.hpp>
#include <troupe/resources.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

namespace troupe {

/// How workers are spread over nodes.
enum class placement_strategy : std::uint8_t {
  /// As few nodes as possible, in the order in which the nodes are named.
  pack = 1,
  /// Evenly over all nodes.
  spread = 2,
  /// All on one node, or not at all.
  strict_pack = 3,
  /// Each on a node of its own, or not at all.
  strict_spread = 4,
};

/// How many workers a run has. A single number: the run starts with that many; lost workers are replaced while the
/// others continue, down to one. A range: the run starts once there is capacity for `min`, accepts joiners up to `max`,
/// and waits while it has fewer than `min`. 0: the training function runs in the driver's process, as one worker with
/// the same interface and the same bits, for debuggers, profilers and sanitizers.
struct worker_range {
  std::uint32_t min = 1;
  std::uint32_t max = 1;

  constexpr worker_range() = default;
  // Implicit, so that a single number is a range.
  constexpr worker_range(std::uint32_t number) : min(number), max(number) {} // NOLINT(google-explicit-constructor)
  constexpr worker_range(std::uint32_t least, std::uint32_t most) : min(least), max(most) {}

  [[nodiscard]] constexpr bool is_elastic() const noexcept { return min != max; }
  bool operator==(const worker_range&) const = default;
};

/// Reads "4", "2-8" or "2:8" for a range, or "0".
[[nodiscard]] expected<worker_range> parse_worker_range(const std::string& text);
[[nodiscard]] std::string to_string(worker_range range);

/// How many workers, and what each of them takes.
struct scaling_config {
  worker_range num_workers = 1;
  /// V: the number of logical shards into which every step's batch is cut. It belongs to the program, like the batch
  /// size: the result depends on it. At least the number of workers.
  std::uint32_t shards = 8;
  /// Each worker computes on a GPU of its own, or on the number or fraction of GPUs in `resources_per_worker`.
  bool use_gpu = false;
  /// The resources that each worker leases: no other run gets them. With 0 CPUs (the default), workers share the CPUs.
  /// A GPU fraction below one shares a GPU among workers of this run: 0.25 puts four on each. Larger numbers must be
  /// whole.
  resources resources_per_worker = {};
  placement_strategy placement = placement_strategy::pack;
  /// Only nodes with these labels (`caf-node --label NAME=VALUE`) get workers.
  std::map<std::string, std::string> node_labels = {};
  /// How long a run with a range waits at its start for more capacity than `min` needs.
  std::chrono::milliseconds scale_up_wait{2'000};
  /// How long a run waits for the capacity for `min` workers, at its start and later, before it fails.
  std::chrono::milliseconds wait_for_workers{600'000};
  /// How long a run waits at its start for resources that other runs have leased, before it fails. The run that has
  /// waited longest gets them first.
  std::chrono::milliseconds wait_for_resources{0};
};

/// `resources_per_worker`, with one GPU where `use_gpu` is set without a number.
[[nodiscard]] resources resources_of_worker(const scaling_config& scaling);

} // namespace troupe
