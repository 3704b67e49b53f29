#pragma once

#include <troupe/messages/worker.hpp>
#include <troupe/types.hpp>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace troupe::runtime {

/// What a rank does in a step.
enum class step_phase : std::uint8_t {
  /// The body: data, contributions, application; on a GPU, the host's part of it.
  compute,
  /// Waits for the reduced gradient, and adds up its part of it.
  wait,
  /// Waits until all ranks have it.
  barrier,
};

/// Adds up where the time of a rank's steps goes, and gives a row about once an interval, which grows with the age of
/// the loop up to a minute. Tries of a step that came to
/// nothing and the forming of groups are left out. Knows no clock.
class step_timer {
 public:
  using clock = std::chrono::steady_clock;

  /// 0 at first: a row for each step.
  void set_interval(clock::duration interval) noexcept { interval_ = interval; }

  /// A try of a step begins, with `compute`. What was measured of an earlier try of it is forgotten.
  void begin(clock::time_point now) noexcept;
  void enter(step_phase next, clock::time_point now) noexcept;
  /// What happened since the last call is not counted, and `compute` goes on.
  void leave_out(clock::time_point now) noexcept;

  /// The step counts, and was applied. Returns a row if this was the last step of the generation's row: the interval is
  /// over, or the next row is of another generation or rank.
  [[nodiscard]] std::optional<times_row> end(step_id step, generation_id generation, rank_id rank,
                                             clock::time_point now);
  /// The rank waited between two steps for a checkpoint.
  void add_checkpoint(clock::duration time) noexcept { checkpoint_ += time; }
  /// What the present group's communicator has sent by now, in all. Steps from now on count what it sends more.
  void begin_group(std::uint64_t sent_bytes) noexcept { group_sent_ = sent_bytes; }
  /// The same at the end of a step, before `end`. A total that is smaller is that of another group.
  void note_sent(std::uint64_t sent_bytes) noexcept {
    step_sent_ += sent_bytes > group_sent_ ? sent_bytes - group_sent_ : 0;
    group_sent_ = sent_bytes;
  }

  /// The row of the steps since the last row, if there are any.
  [[nodiscard]] std::optional<times_row> take();

 private:
  void count(clock::duration step) noexcept;
  [[nodiscard]] bool is_due(clock::time_point now) const noexcept;

  using durations = std::array<clock::duration, 3>;

  clock::duration interval_{};
  std::optional<clock::time_point> loop_began_;
  durations step_{};
  step_phase phase_ = step_phase::compute;
  clock::time_point since_;
  /// The row that is being added up; none before its first step.
  std::optional<times_row> row_;
  durations sum_{};
  clock::time_point row_began_;
  /// Since the last row.
  clock::duration checkpoint_{};
  std::uint64_t group_sent_ = 0;
  /// In the step that is under way.
  std::uint64_t step_sent_ = 0;
  std::array<std::uint32_t, step_duration_bounds_us.size() + 1> durations_{};
};

} // namespace troupe::runtime
