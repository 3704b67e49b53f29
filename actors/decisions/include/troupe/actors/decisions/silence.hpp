#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace troupe::actors {

/// What one look at a process shows, all its threads together. `runtime::sample_process` takes it.
struct process_sample {
  std::chrono::steady_clock::time_point when;
  /// A letter of proc(5): 'T' stopped, 'R' a thread runs or is ready to, 't' traced, 'D' in uninterruptible sleep, 'S'
  /// all sleep, 'Z' ended, 'X' gone.
  char state = 'X';
  /// Processor time that it has got since its start.
  std::chrono::nanoseconds cpu{};
  /// How long its living threads have waited for a processor since their start, summed up; nothing where the kernel
  /// does not tell. A wait that still lasts is not in it: a thread in one shows as 'R' only.
  std::optional<std::chrono::nanoseconds> run_delay;

  bool operator==(const process_sample&) const = default;
};

/// Why a process says nothing.
enum class silence_cause : std::uint8_t {
  /// It would say something if it got a processor.
  alive_but_starved = 1,
  /// Somebody has stopped it. It may go on at any time, and must find itself refused then.
  stopped = 2,
  /// It has ended.
  dead = 3,
  /// It could run, and does not answer.
  hung = 4,
};

struct silence_verdict {
  silence_cause cause = silence_cause::hung;
  /// Whether to give it up: always, but for the starved within their limit.
  bool fenced = true;
  /// For people, to stand behind the name of the process: "is stopped (SIGSTOP, or a debugger)".
  std::string reason;
};

/// A starved process is spared until it has been silent for so many times the timeout.
inline constexpr int spared_timeouts = 10;

/// Judges a process that has been silent for `silent_for` by two looks at it: `before` from the time when it became
/// overdue (the same as `now` when there was none), `now` of this moment. Pure.
[[nodiscard]] silence_verdict judge_silence(const process_sample& before, const process_sample& now,
                                            std::chrono::nanoseconds silent_for, std::chrono::nanoseconds timeout);

} // namespace troupe::actors
