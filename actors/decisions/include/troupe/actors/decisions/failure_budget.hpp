#pragma once

#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/inspect.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace troupe::actors {

/// The failures since the run last completed a new step. Those that break the same generation count once.
struct failures_in_row {
  std::uint32_t count = 0;
  /// The furthest step of the run when the last of them happened.
  step_id furthest;
  /// The generation that it broke; 0 before the first.
  generation_id generation;

  bool operator==(const failures_in_row&) const = default;
};

TROUPE_INSPECT(failures_in_row, count, furthest, generation)

/// How many failures a run survives: at most so many in a row, with no new step between them.
class failure_budget {
 public:
  explicit failure_budget(std::uint32_t most, failures_in_row before = {}) : most_(most), row_(before) {}

  /// A failure breaks this generation. No worker has applied a later step than `furthest`.
  void add(generation_id generation, step_id furthest) noexcept;
  /// Whether there were not too many.
  [[nodiscard]] bool holds() const noexcept { return row_.count <= most_; }
  /// Whether the run may survive anything at all.
  [[nodiscard]] bool survives_failures() const noexcept { return most_ > 0; }
  [[nodiscard]] const failures_in_row& in_row() const noexcept { return row_; }
  /// Why the last failure is one too many, for people.
  [[nodiscard]] std::string describe_excess() const;

 private:
  std::uint32_t most_;
  failures_in_row row_;
};

/// How many joiners in a row may end before they get a place: after thirty that are killed from outside, or three that
/// end by themselves, none is started for a while. Then they are tried again, and the next failure doubles the pause:
/// five seconds at first, five minutes at most.
class joiner_budget {
 public:
  void add(ended_by who) noexcept;
  /// A joiner got a place, or there is reason to try again at once.
  void reset() noexcept { *this = {}; }
  /// Whether no joiner may be started now.
  [[nodiscard]] bool is_spent() const noexcept { return spent_ >= limit; }
  /// How long none is started once it is spent.
  [[nodiscard]] std::chrono::seconds pause() const noexcept { return pause_; }
  /// How many have ended in a row.
  [[nodiscard]] std::uint32_t in_row() const noexcept { return in_row_; }
  /// Call it several times a second. True once, when a pause is over and joiners may be started again.
  [[nodiscard]] bool end_pause(run_time now) noexcept;

 private:
  static constexpr std::uint32_t limit = 30;
  static constexpr std::chrono::seconds first_pause{5};
  static constexpr std::chrono::seconds longest_pause{300};

  std::uint32_t spent_ = 0;
  std::uint32_t in_row_ = 0;
  std::chrono::seconds pause_ = first_pause;
  /// When the pause began, as far as it is known: `add` has no clock.
  std::optional<run_time> since_;
};

} // namespace troupe::actors
