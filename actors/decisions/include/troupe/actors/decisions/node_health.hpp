#pragma once

#include <troupe/actors/decisions/worker_table.hpp>

#include <chrono>
#include <cstdint>
#include <limits>

namespace troupe::actors {

/// Whether a node is good for more workers: after three that die on it, with less than half a minute between them, it
/// gets none for five seconds while other nodes have free CPUs. Then it gets one at a time, and the next death doubles
/// the pause, up to five minutes. A node whose workers the others cannot reach gets none for the same pauses, whether
/// others have free CPUs or not.
class node_health {
 public:
  static constexpr std::uint32_t any_number = std::numeric_limits<std::uint32_t>::max();

  /// A worker on it has died.
  void note_death(run_time now) noexcept;
  /// The data network between it and other nodes is cut.
  void note_cut(run_time now) noexcept;
  /// Whether workers may go there at all. Asked at regular intervals: `end_cut` says once that the pause after a cut is
  /// over.
  [[nodiscard]] bool takes_workers() const noexcept { return !is_cut_; }
  [[nodiscard]] bool end_cut(run_time now) noexcept;
  /// How long it gets none after the last death; 0 if workers may go there.
  [[nodiscard]] std::chrono::seconds pause() const noexcept;
  /// How many have died, none of them long after the one before.
  [[nodiscard]] std::uint32_t deaths() const noexcept { return deaths_; }
  /// How many more workers it should get while other nodes have free CPUs.
  [[nodiscard]] std::uint32_t most_more(run_time now) const noexcept;

 private:
  std::uint32_t deaths_ = 0;
  run_time last_ = {};
  bool is_cut_ = false;
};

} // namespace troupe::actors
