#pragma once

#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace troupe::actors {

/// What an attempt is doing. Each alternative holds only what is meaningful in that phase.
namespace attempt_phase {

/// Not all processes have joined.
struct starting {};

/// All members have the command to stop at the next boundary between steps and to report there.
struct regroup_request {
  std::string cause;
  /// The number of the checkpoint command that must be agreed on before all leave.
  std::optional<std::uint64_t> checkpoint;
};

struct training {
  std::optional<regroup_request> asked;
};

/// A generation has ended, and the next is not formed yet.
struct regrouping {
  enum class group : std::uint8_t {
    /// Its members come to a boundary by themselves.
    intact,
    /// Its collective operations were made to fail.
    aborted,
  };
  enum class forming : std::uint8_t {
    open,
    /// All have reported, and the run is paused or has too few workers.
    held,
  };
  /// Members wait at a boundary for joiners that are about to reach it.
  struct follower_wait {
    /// Set by the first tick.
    std::optional<run_time> since;
  };

  std::string cause;
  std::optional<std::uint64_t> checkpoint;
  group before = group::intact;
  forming next = forming::open;
  std::optional<follower_wait> waits;
};

/// No worker with the state is left: the run starts again from its latest checkpoint.
struct lost {
  std::string why;
};

/// The members' reports contradict each other.
struct contradicted {
  worker_id worker;
  error reason;
};

/// All that had the state have returned.
struct completed {};

} // namespace attempt_phase

/// The phase of an attempt, and how one leads to the next.
class attempt_state {
 public:
  using any_phase = std::variant<attempt_phase::starting, attempt_phase::training, attempt_phase::regrouping,
                                 attempt_phase::lost, attempt_phase::contradicted, attempt_phase::completed>;

  [[nodiscard]] const any_phase& phase() const noexcept { return phase_; }
  template <class Phase>
  [[nodiscard]] bool is() const noexcept {
    return std::holds_alternative<Phase>(phase_);
  }
  [[nodiscard]] bool is_held() const noexcept;
  /// Why the members regroup, or are asked to; nothing in other phases, and while they only train.
  [[nodiscard]] std::optional<std::string> cause() const;
  /// The number of the checkpoint command that must be agreed on before all leave.
  [[nodiscard]] std::optional<std::uint64_t> checkpoint() const;

  void begin_training() { phase_ = attempt_phase::training{}; }
  /// False if members do not train, or are asked already.
  [[nodiscard]] bool ask_for_regroup(const std::string& cause);
  /// They are asked, and leave once this checkpoint command is agreed on.
  void require_checkpoint(std::uint64_t number);
  void begin_regrouping(std::string cause);
  /// False if the group was aborted before.
  [[nodiscard]] bool abort_group();
  /// Since when members wait for followers; `now` if they just begin to. Nothing if they do not wait.
  [[nodiscard]] std::optional<run_time> waiting_since(run_time now);
  void wait_for_followers();
  /// False if it is held already.
  [[nodiscard]] bool hold();
  /// The pause is over.
  void resume(const std::string& cause);
  /// The attempt does not go on.
  template <class Phase>
  void end_with(Phase last) {
    phase_ = std::move(last);
  }

 private:
  any_phase phase_;
};

} // namespace troupe::actors
