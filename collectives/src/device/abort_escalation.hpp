#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace troupe::collectives {

/// What to do about a group of NCCL's that is given up, stage by stage: revoke it where the version can, abort it, each
/// under a deadline of ours, since both have been seen to hang; if neither comes back, its kernels may write on, and
/// this process has to end. It asks for leave first, so that not all who hang die at once, and if it is the last that
/// has the state, the state is copied out on a stream of its own. The same from there on for work on a device that does
/// not end. A plain class: whoever drives it does the work, and tells it of ends and of the time.
class abort_escalation {
 public:
  using clock = std::chrono::steady_clock;

  struct deadlines {
    std::chrono::milliseconds abort = std::chrono::seconds{5};
    std::chrono::milliseconds leave = std::chrono::seconds{30};
    std::chrono::milliseconds copy = std::chrono::seconds{60};
  };

  enum class stage : std::uint8_t { none, revoke, abort, request_exit, copy_out, end_process, done };

  /// What is to be done now. The same one again means to go on waiting.
  struct decision {
    stage what = stage::none;
    /// For people; empty if nothing is new.
    std::string reason;
  };

  abort_escalation(bool can_revoke, deadlines limits) : can_revoke_(can_revoke), limits_(limits) {}

  [[nodiscard]] decision begin(clock::time_point now);
  /// With nothing left to be tried: leave is asked for. `why` says what does not end.
  [[nodiscard]] decision begin_with_permit(const std::string& why, clock::time_point now);
  [[nodiscard]] decision at(clock::time_point now);

  /// The call of the current stage, `revoke` or `abort`, has come back; `worked` unless it was with an error.
  [[nodiscard]] decision on_call_ended(stage which, bool worked, clock::time_point now);
  /// An answer, or an error in its place: then nobody may know who has the state.
  [[nodiscard]] decision on_exit(bool is_last_holder, clock::time_point now);
  [[nodiscard]] decision on_exit_refused(const std::string& why, clock::time_point now);
  /// What did not end has ended by itself.
  [[nodiscard]] decision on_let_go(clock::time_point now);
  /// Empty if it is; else why it is not.
  [[nodiscard]] decision on_copied(const std::string& failure, clock::time_point now);

  [[nodiscard]] stage current() const noexcept { return current_; }
  /// Whether the group ended revoked, and may be shrunk.
  [[nodiscard]] bool is_revoked() const noexcept { return is_revoked_; }

 private:
  decision go_to(stage next, clock::time_point now, std::string reason);

  const bool can_revoke_;
  const deadlines limits_;
  stage current_ = stage::none;
  bool is_revoked_ = false;
  clock::time_point ends_at_;
};

} // namespace troupe::collectives
