#pragma once

#include <troupe/actors/decisions/worker_table.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace troupe::actors {

/// Nodes whose connections have ended while their workers may live: a reset, a firewall, a dead host. They are dialled
/// again. A plain class.
class broken_links {
 public:
  /// The result of dialling a node again.
  enum class dial_result : std::uint8_t {
    /// The host answers, but no process listens at the port.
    refused,
    /// The reason is unknown: packets may be lost.
    failed,
  };

  void add(std::uint32_t node, std::string why, run_time now) {
    links_.insert_or_assign(node, link{std::move(why), now});
  }
  /// The node is connected again, or given up.
  void remove(std::uint32_t node) { links_.erase(node); }
  void on_dialled(std::uint32_t node, dial_result result, run_time now);

  /// The nodes to report to the run, with the reasons: each once, and links that broke together in one call. Most
  /// connections are restored before that.
  [[nodiscard]] std::map<std::uint32_t, std::string> take_unreachable(run_time now);
  /// The nodes whose ports have refused connections for so long that their processes must have ended, and with them
  /// their workers.
  [[nodiscard]] std::vector<std::uint32_t> dead(run_time now) const;

 private:
  struct not_dialled {};
  /// Nothing is known from the last attempt.
  struct unanswered {};
  /// Every attempt since then was refused.
  struct refused {
    run_time since;
  };

  enum class report : std::uint8_t { due, made };

  struct link {
    std::string why;
    run_time since;
    std::variant<not_dialled, unanswered, refused> dialled = {};
    report to_run = report::due;
  };

  std::map<std::uint32_t, link> links_;
};

} // namespace troupe::actors
