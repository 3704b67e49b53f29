#pragma once

#include <troupe/actors/decisions/control_state.hpp>
#include <troupe/actors/decisions/run_actions.hpp>

#include <cstdint>
#include <deque>
#include <optional>

namespace troupe::actors {

/// Whether a driver that begins with `kept` may find what has come of `now`: it says the same of generation, members,
/// plans, commands and wishes. Pure.
[[nodiscard]] bool covers(const control_state& kept, const control_state& now);

/// Holds back what a coordinator has decided until the journal says it: workers hear of nothing that another driver
/// would not know. Actions keep their order. A plain class; not thread-safe.
class journal_gate {
 public:
  /// The state that the decisions have led to so far.
  [[nodiscard]] const control_state& latest() const noexcept { return latest_.state; }
  /// These actions were decided, and led to this state; nothing if to none but `latest`.
  void add(run_actions actions, std::optional<control_state> now);
  /// Tells the states apart: it grows with each.
  [[nodiscard]] std::uint64_t latest_number() const noexcept { return latest_.number; }
  /// Whether the journal says what had been decided at this number, or nobody waits for it.
  [[nodiscard]] bool is_kept(std::uint64_t number) const noexcept { return kept_.number >= number || is_late_; }
  /// The actions that can be carried out next, or nothing.
  [[nodiscard]] std::optional<run_actions> next();

  /// What to write now; nothing if all is written, or being written. `on_written` comes next.
  [[nodiscard]] std::optional<control_state> begin_write();
  /// It is on the device, or could not be written: nobody waits for it any more.
  void on_written();
  /// It takes too long: nobody waits for the journal until it is written.
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
