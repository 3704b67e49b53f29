#include "schedule.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace troupe::chaos {

std::string_view to_string(fault_kind kind) {
  switch (kind) {
  case fault_kind::kill:
    return "kill";
  case fault_kind::kill_two:
    return "kill-two";
  case fault_kind::freeze:
    return "freeze";
  case fault_kind::kill_node:
    return "kill-node";
  case fault_kind::freeze_node:
    return "freeze-node";
  case fault_kind::cut:
    return "cut";
  case fault_kind::fill_disk:
    return "fill-disk";
  case fault_kind::freeze_all_nodes:
    return "freeze-all-nodes";
  case fault_kind::freeze_driver:
    return "freeze-driver";
  case fault_kind::reset:
    return "reset";
  case fault_kind::restart_driver:
    return "restart-driver";
  case fault_kind::freeze_all:
    return "freeze-all";
  case fault_kind::cut_control:
    return "cut-control";
  case fault_kind::cut_data:
    return "cut-data";
  case fault_kind::freeze_disk:
    return "freeze-disk";
  case fault_kind::flood:
    return "flood";
  case fault_kind::cpu_storm:
    return "cpu-storm";
  case fault_kind::unread_log:
    return "unread-log";
  }
  return "?";
}

std::string_view explain(fault_kind kind) {
  switch (kind) {
  case fault_kind::kill:
    return "SIGKILL to a worker";
  case fault_kind::kill_two:
    return "SIGKILL to two workers at the same instant";
  case fault_kind::freeze:
    return "SIGSTOP to a worker; SIGCONT 0.1 to 4 s later, when it may already have been given up";
  case fault_kind::kill_node:
    return "SIGKILL to a caf-node, which ends its workers; a new one on its address 0.5 to 3 s later";
  case fault_kind::freeze_node:
    return "SIGSTOP to a caf-node, in half of the cases also to its workers; SIGCONT 0.1 to 4 s later";
  case fault_kind::cut:
    return "the network link of a caf-node is down for 0.1 to 4 s; needs root (network namespaces)";
  case fault_kind::fill_disk:
    return "the disk for checkpoints is full for 0.5 to 3 s; needs root (a tmpfs)";
  case fault_kind::freeze_all_nodes:
    return "SIGSTOP to all caf-nodes at once, without their workers; SIGCONT 0.1 to 4 s later";
  case fault_kind::freeze_driver:
    return "SIGSTOP to the driver; SIGCONT 0.1 to 4 s later";
  case fault_kind::reset:
    return "the driver's connections to a caf-node are reset; needs root (network namespaces)";
  case fault_kind::restart_driver:
    return "SIGKILL to the driver; another takes the run over 0.5 to 3 s later";
  case fault_kind::freeze_all:
    return "SIGSTOP to all workers at once; SIGCONT 0.1 to 4 s later";
  case fault_kind::cut_control:
    return "the driver does not reach a caf-node for 0.1 to 4 s, and other nodes do; needs root (network namespaces)";
  case fault_kind::cut_data:
    return "a caf-node and the others do not reach each other for 0.1 to 6 s, and the driver reaches all; needs root "
           "(network namespaces)";
  case fault_kind::freeze_disk:
    return "the disk for checkpoints is frozen for 0.5 to 4 s: a process that writes to it sleeps and cannot be "
           "killed; in half of the cases such a worker is killed meanwhile; needs root (a loop device)";
  case fault_kind::flood:
    return "a worker prints 1 GB, or as much as it can in 10 s";
  case fault_kind::cpu_storm:
    return "four busy loops for each processor, for 0.5 to 4 s";
  case fault_kind::unread_log:
    return "nobody reads the full pipe to which the driver or a caf-node writes its log, for 0.5 to 4 s";
  }
  return "?";
}

bool concerns_node(fault_kind kind) {
  return kind == fault_kind::kill_node || kind == fault_kind::freeze_node || kind == fault_kind::cut ||
         kind == fault_kind::freeze_all_nodes || kind == fault_kind::reset || kind == fault_kind::restart_driver ||
         kind == fault_kind::cut_control || kind == fault_kind::cut_data;
}

std::optional<std::vector<weighted_kind>> parse_kinds(std::string_view text) {
  std::vector<weighted_kind> result;
  while (!text.empty()) {
    auto entry = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), entry.size() + 1));
    auto name = entry.substr(0, entry.find('='));
    auto kind = std::ranges::find(all_fault_kinds, name, to_string);
    if (kind == std::end(all_fault_kinds))
      return std::nullopt;
    auto weight = std::uint32_t{1};
    if (name.size() < entry.size()) {
      auto digits = entry.substr(name.size() + 1);
      auto [end, bad] = std::from_chars(digits.data(), digits.data() + digits.size(), weight);
      if (bad != std::errc{} || end != digits.data() + digits.size() || weight > 1'000'000)
        return std::nullopt;
    }
    if (weight > 0)
      result.push_back({*kind, weight});
  }
  if (result.empty())
    return std::nullopt;
  return result;
}

schedule::schedule(std::uint64_t seed, std::chrono::milliseconds mean_interval, std::vector<weighted_kind> kinds)
    : random_(seed), mean_interval_(mean_interval), kinds_(std::move(kinds)) {}

// The numbers of the standard distributions differ between libraries.
double schedule::uniform() {
  return static_cast<double>(random_() >> 11) * 0x1p-53;
}

planned_fault schedule::next() {
  // Each fault draws the same number of random numbers, so that the times do not depend on the kinds.
  auto interval = uniform();
  auto kind = uniform();
  auto draw = random_();
  auto length = uniform();

  planned_fault result;
  // At most eight times the mean, so that no run waits for the tail of the distribution.
  auto factor = std::min(-std::log1p(-interval), 8.0);
  result.after = std::chrono::milliseconds{std::llround(factor * static_cast<double>(mean_interval_.count()))};
  auto total = std::accumulate(kinds_.begin(), kinds_.end(), std::uint64_t{0},
                               [](std::uint64_t sum, const weighted_kind& each) { return sum + each.weight; });
  auto mark = static_cast<std::uint64_t>(kind * static_cast<double>(total));
  for (const auto& each : kinds_) {
    result.kind = each.kind;
    if (mark < each.weight)
      break;
    mark -= each.weight;
  }
  result.draw = draw;
  auto between = [length](int least, int most) {
    return std::chrono::milliseconds{least + std::llround(length * (most - least))};
  };
  switch (result.kind) {
  case fault_kind::kill:
  case fault_kind::kill_two:
  case fault_kind::reset:
  case fault_kind::flood:
    break;
  case fault_kind::freeze:
  case fault_kind::freeze_all_nodes:
  case fault_kind::freeze_driver:
  case fault_kind::freeze_node:
  case fault_kind::cut:
  case fault_kind::freeze_all:
  case fault_kind::cut_control:
    result.lasts = between(100, 4000);
    break;
  case fault_kind::cut_data:
    result.lasts = between(100, 6000);
    break;
  case fault_kind::freeze_disk:
  case fault_kind::cpu_storm:
  case fault_kind::unread_log:
    result.lasts = between(500, 4000);
    break;
  case fault_kind::kill_node:
  case fault_kind::fill_disk:
  case fault_kind::restart_driver:
    result.lasts = between(500, 3000);
    break;
  }
  return result;
}

} // namespace troupe::chaos
