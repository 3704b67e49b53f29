#pragma once

#include <troupe/actors/decisions/control_state.hpp>
#include <troupe/actors/decisions/run_actions.hpp>

#include <cstdint>
#include <deque>
#include <optional>

namespace troupe::actors {

/// Whether a driver that begins with `kept` can take over a run in state `now`: both have the same attempt, generation,
/// members, plans, commands and requests. Pure.
[[nodiscard]] bool covers(const control_state& kept, const control_state& now);

/// Delays a coordinator's actions until the journal contains their state, so that workers never know more than the next
/// driver would. Actions keep their order. A plain class; not thread-safe.
class journal_gate {
 public:
  /// The state that the decisions have led to so far.
  [[nodiscard]] const control_state& latest() const noexcept { return latest_.state; }
  /// Adds decided actions and the state after them; nothing if the state is still `latest`.
  void add(run_actions actions, std::optional<control_state> now);
  /// Tells the states apart: it grows with each.
  [[nodiscard]] std::uint64_t latest_number() const noexcept { return latest_.number; }
  /// Whether the journal contains the state of this number, or has been late and is not waited for.
  [[nodiscard]] bool is_kept(std::uint64_t number) const noexcept { return kept_.number >= number || is_late_; }
  /// The actions that can be carried out next, or nothing.
  [[nodiscard]] std::optional<run_actions> next();

  /// The state to write now; nothing if all is written, or being written. `on_written` must follow.
  [[nodiscard]] std::optional<control_state> begin_write();
  /// The state is durable, or could not be written; in both cases its actions proceed.
  void on_written();
  /// Writing takes too long: actions proceed without the journal until it is written.
  void on_late() noexcept { is_late_ = true; }

 private:
  /// A state, and how many there were before.
  struct version {
    std::uint64_t number = 0;
    control_state state;
  };
  struct batch {
    run_actions actions;
    /// They wait for this version.
    std::uint64_t after = 0;
  };

  version latest_;
  version kept_;
  std::optional<version> writing_;
  std::deque<batch> waiting_;
  bool is_late_ = false;
};

} // namespace troupe::actors
