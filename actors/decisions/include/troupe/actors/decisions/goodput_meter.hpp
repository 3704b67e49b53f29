#pragma once

#include <troupe/messages/worker.hpp>
#include <troupe/result.hpp>
#include <troupe/types.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <string_view>

namespace troupe::actors {

/// What a run does, for the account of its time.
enum class time_use : std::uint8_t {
  /// Until its first step is applied.
  starting,
  training,
  /// All workers were lost: until the first step of the next attempt.
  restarting,
  /// Waits for nodes or CPUs for its workers.
  awaiting_capacity,
  /// A user has paused it.
  paused,
  /// Workers that have its state cannot be reached, and it waits for them.
  awaiting_peers,
  ending,
};

/// "starting", "awaiting_capacity", ...
[[nodiscard]] std::string_view to_string(time_use activity) noexcept;

/// Adds up how much a run gets ahead, and where the rest of its time goes. The driver's clock says what the run does;
/// the workers say how long their steps and pauses took. A step counts once, whichever rank tells of it, and what was
/// lost with a worker that did not tell is put at the mean. Time comes in as an argument.
class goodput_meter {
 public:
  using clock = std::chrono::steady_clock;

  goodput_meter() = default;
  explicit goodput_meter(clock::time_point now) : began_(now), since_(now) {}

  /// The run does something else from now on.
  void enter(time_use next, clock::time_point now);
  [[nodiscard]] time_use activity() const noexcept { return activity_; }

  /// Steps up to this one count already: the run resumes behind it.
  void begin_after(step_id step);
  /// The run goes on from step `from`, after `furthest` had been applied.
  void restart_after(step_id from, step_id furthest);
  /// The generation that ended a hold was formed: its workers' pause contains the hold.
  void formed(generation_id generation, clock::time_point now);

  void add(const metrics_batch& batch);

  [[nodiscard]] run_goodput so_far(clock::time_point now) const;

 private:
  void add(const times_row& row);
  [[nodiscard]] double mean_step() const noexcept;

  struct pause {
    /// Of any rank: they pause together.
    double longest = 0;
    /// How much of it is accounted for by what the run did.
    double held = 0;
  };

  clock::time_point began_;
  clock::time_point since_;
  time_use activity_ = time_use::starting;
  std::map<time_use, double> seconds_;
  /// Holds since the last generation was formed.
  double held_ = 0;
  /// The pauses of generations that may still be told of.
  std::map<generation_id, pause> pauses_;
  double paused_before_ = 0;
  /// The last step that counts, and the last that was computed again since the last restart.
  std::uint64_t counted_ = 0;
  std::uint64_t again_ = 0;
  run_goodput sum_;
  /// By rank: how long it has waited for checkpoints.
  std::map<rank_id, double> checkpoint_;
};

} // namespace troupe::actors
