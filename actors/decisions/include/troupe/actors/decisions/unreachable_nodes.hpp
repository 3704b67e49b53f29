#pragma once

#include <troupe/actors/decisions/worker_table.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace troupe::actors {

/// The nodes that do not answer, and whose workers may live. A plain class.
class unreachable_nodes {
 public:
  struct silence {
    run_time since;
    /// For people.
    std::string why;
  };

  void add(std::uint32_t node, std::string why, run_time now) { nodes_.emplace(node, silence{now, std::move(why)}); }
  /// It is given up. Returns what was known of it.
  std::optional<silence> remove(std::uint32_t node);
  /// It answers.
  std::optional<silence> on_answer(std::uint32_t node, run_time now);

  [[nodiscard]] bool empty() const noexcept { return nodes_.empty(); }
  [[nodiscard]] bool contains(std::uint32_t node) const { return nodes_.contains(node); }
  /// Whether one of them has answered less than `window` ago: what silenced it may have silenced the others, and they
  /// are about to answer, too.
  [[nodiscard]] bool answered_within(std::chrono::milliseconds window, run_time now) const {
    return last_answer_ && now - *last_answer_ < window;
  }
  /// Those that have not answered for `limit` or longer.
  [[nodiscard]] std::vector<std::uint32_t> silent_for(std::chrono::milliseconds limit, run_time now) const;

 private:
  std::map<std::uint32_t, silence> nodes_;
  std::optional<run_time> last_answer_;
};

} // namespace troupe::actors
