#pragma once

#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/config/failure.hpp>
#include <troupe/messages/node.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe::actors {

/// The nodes and workers of a run that do not answer and may live. They are given up as soon as the run can continue
/// without them; while no other worker has the state, the run waits for them. A plain class.
class silent_peers {
 public:
  explicit silent_peers(const failure_config& how)
      : heartbeat_timeout_(how.heartbeat_timeout), unreachable_after_(how.unreachable_after), debugger_(how.debugger) {}

  void add_node(std::uint32_t node, std::string why, run_time now) {
    nodes_.emplace(node, silence{now, std::move(why)});
  }
  /// The node answers, or its workers have ended. Returns since when it was silent.
  std::optional<run_time> on_node_answers(std::uint32_t node, run_time now);
  void forget_node(std::uint32_t node);

  /// The workers that have become silent, and those that answer again, with when each fell silent.
  struct change {
    std::vector<worker_id> silent;
    std::map<worker_id, run_time> answered;
  };
  /// Replaces the set of this node's silent workers.
  [[nodiscard]] change set_workers(std::uint32_t node, const std::vector<silent_worker>& silent,
                                   const worker_table& workers, run_time now);
  /// Its process has ended.
  void forget_worker(worker_id worker);

  /// Those to give up, and why.
  struct given_up {
    std::map<std::uint32_t, std::string> nodes;
    std::map<worker_id, std::string> workers;
  };
  /// While the run trains or regroups. `began_at` is the step at which the attempt began; `has_results` says that a
  /// training function has returned.
  [[nodiscard]] given_up take_due(const worker_table& workers, step_id began_at, bool has_results, run_time now);
  /// In other phases the state is in a checkpoint or the results are known: gives up all silent workers.
  [[nodiscard]] given_up take_workers();
  /// If the run fails: all.
  [[nodiscard]] given_up take_all();

  [[nodiscard]] bool empty() const noexcept { return nodes_.empty() && workers_.empty(); }
  /// Whether the run waits for a worker that a debugger holds.
  [[nodiscard]] bool holds_any() const {
    return std::ranges::any_of(workers_, [this](const auto& x) { return is_held(x.second); });
  }
  [[nodiscard]] bool contains(std::uint32_t node) const { return nodes_.contains(node); }
  [[nodiscard]] bool contains(worker_id worker) const { return workers_.contains(worker); }
  /// Describes the wait and its limit, for people. `why` names the silent peer.
  [[nodiscard]] std::string describe_wait(const std::string& why) const;
  [[nodiscard]] std::string describe_wait(worker_id worker) const;
  /// "node b:4000, silent for 12 s": those that do not answer now, for people.
  [[nodiscard]] std::string describe_silence(const worker_table& workers, run_time now,
                                             const std::function<std::string(std::uint32_t)>& name_of_node) const;

 private:
  struct silence {
    run_time since;
    /// For people.
    std::string why;
    /// Of a worker.
    std::uint32_t node = 0;
    silence_kind kind = silence_kind::frozen;
  };

  /// Whether a debugger holds it, and the run waits until it continues.
  [[nodiscard]] bool is_held(const silence& x) const {
    return x.kind == silence_kind::debugged && debugger_ == debugger_mode::wait;
  }

  /// After one answers, the others get this long to answer too: a fault may end for one peer after another.
  std::chrono::milliseconds heartbeat_timeout_;
  /// How long the run waits for them.
  std::chrono::milliseconds unreachable_after_;
  debugger_mode debugger_;
  std::map<std::uint32_t, silence> nodes_;
  std::map<worker_id, silence> workers_;
  /// Given up, but still reported by their nodes.
  std::set<worker_id> given_up_;
  std::optional<run_time> last_answer_;
};

} // namespace troupe::actors
