#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::chaos {

enum class fault_kind : std::uint8_t {
  kill = 1,
  kill_two = 2,
  freeze = 3,
  kill_node = 4,
  freeze_node = 5,
  cut = 6,
  fill_disk = 7,
  freeze_all_nodes = 8,
  freeze_driver = 9,
  reset = 10,
  restart_driver = 11,
  freeze_all = 12,
  cut_control = 13,
  cut_data = 14,
  freeze_disk = 15,
  flood = 16,
  cpu_storm = 17,
  unread_log = 18,
};

inline constexpr fault_kind all_fault_kinds[] = {
    fault_kind::kill,          fault_kind::kill_two,  fault_kind::freeze,         fault_kind::kill_node,
    fault_kind::freeze_node,   fault_kind::cut,       fault_kind::fill_disk,      fault_kind::freeze_all_nodes,
    fault_kind::freeze_driver, fault_kind::reset,     fault_kind::restart_driver, fault_kind::freeze_all,
    fault_kind::cut_control,   fault_kind::cut_data,  fault_kind::freeze_disk,    fault_kind::flood,
    fault_kind::cpu_storm,     fault_kind::unread_log};

/// The name on the command line: "kill", "kill-two", ...
[[nodiscard]] std::string_view to_string(fault_kind kind);

/// One line of description for `--help`.
[[nodiscard]] std::string_view explain(fault_kind kind);

/// Whether the fault hits a node, so that workers may be lost that no list of victims contains.
[[nodiscard]] bool concerns_node(fault_kind kind);

struct weighted_kind {
  fault_kind kind = fault_kind::kill;
  std::uint32_t weight = 1;

  bool operator==(const weighted_kind&) const = default;
};

/// Parses "kill,freeze=3,cut"; a missing weight means 1. Empty for an invalid text.
[[nodiscard]] std::optional<std::vector<weighted_kind>> parse_kinds(std::string_view text);

/// A planned fault. Its victim is chosen when it is due, among the processes that live then: `draw` modulo their
/// number.
struct planned_fault {
  /// Since the previous fault.
  std::chrono::milliseconds after{0};
  fault_kind kind = fault_kind::kill;
  std::uint64_t draw = 0;
  /// Until it is undone: the victim resumed or restarted, the link restored, the disk freed.
  std::chrono::milliseconds lasts{0};

  bool operator==(const planned_fault&) const = default;
};

/// An endless sequence of faults with exponential intervals and weighted kinds. A seed gives the same faults on every
/// machine.
class schedule {
 public:
  /// `kinds` must not be empty and must have a positive weight.
  schedule(std::uint64_t seed, std::chrono::milliseconds mean_interval, std::vector<weighted_kind> kinds);

  [[nodiscard]] planned_fault next();

 private:
  /// In [0, 1).
  [[nodiscard]] double uniform();

  std::mt19937_64 random_;
  std::chrono::milliseconds mean_interval_;
  std::vector<weighted_kind> kinds_;
};

} // namespace troupe::chaos
