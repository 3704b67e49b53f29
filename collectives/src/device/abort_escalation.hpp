#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace troupe::collectives {

/// Decides how to end an NCCL group that was given up, stage by stage: revoke it if the version can, then abort it,
/// each with our own deadline because both have been seen to hang. If neither returns, its kernels may still write, so
/// this process must end. It requests an exit permit first, so that hanging processes do not all end at once; if it is
/// the last holder of the state, the state is copied out on a separate stream. Hanging work on a device enters at the
/// permit stage. A plain class: its driver does the work and reports results and the time.
class abort_escalation {
 public:
  using clock = std::chrono::steady_clock;

  struct deadlines {
    std::chrono::milliseconds abort = std::chrono::seconds{5};
    std::chrono::milliseconds exit_permit = std::chrono::seconds{30};
    std::chrono::milliseconds copy = std::chrono::seconds{60};
  };

  enum class stage : std::uint8_t { none, revoke, abort, request_exit, copy_out, end_process, done };

  /// The next stage. The same stage again means: keep waiting.
  struct decision {
    stage what = stage::none;
    /// To be logged; empty if nothing is new.
    std::string reason;
  };

  abort_escalation(bool can_revoke, deadlines limits) : can_revoke_(can_revoke), limits_(limits) {}

  [[nodiscard]] decision begin(clock::time_point now);
  /// Enters at the permit stage, when there is nothing to revoke or abort. `why` says what does not end.
  [[nodiscard]] decision begin_with_permit(const std::string& why, clock::time_point now);
  [[nodiscard]] decision at(clock::time_point now);

  /// The call of stage `revoke` or `abort` has returned; `worked` if without an error.
  [[nodiscard]] decision on_call_ended(stage which, bool worked, clock::time_point now);
  /// The answer to the request, or the error in its place, after which the last holder of the state is unknown.
  [[nodiscard]] decision on_exit(bool is_last_holder, clock::time_point now);
  [[nodiscard]] decision on_exit_refused(const std::string& why, clock::time_point now);
  /// The hanging work has ended by itself.
  [[nodiscard]] decision on_let_go(clock::time_point now);
  /// The copy has ended; `failure` is empty if it worked.
  [[nodiscard]] decision on_copied(const std::string& failure, clock::time_point now);

  [[nodiscard]] stage current() const noexcept { return current_; }
  /// Whether the group ended revoked, and can therefore be shrunk.
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
