#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace troupe::actors {

/// One sample of a process, over all its threads. `runtime::sample_process` takes it.
struct process_sample {
  std::chrono::steady_clock::time_point when;
  /// A letter of proc(5): 'T' stopped, 'R' a thread runs or is ready to, 't' traced, 'D' in uninterruptible sleep, 'S'
  /// all sleep, 'Z' ended, 'X' gone.
  char state = 'X';
  /// Processor time since its start.
  std::chrono::nanoseconds cpu{};
  /// How long its living threads have waited for a processor since their start, in sum; absent if the kernel does not
  /// say. A wait in progress is not included: its thread only shows as 'R'.
  std::optional<std::chrono::nanoseconds> run_delay;
  /// The function of the kernel in which a thread is in uninterruptible sleep; empty if there is none, or it cannot be
  /// read.
  std::string waits_in = {};
  /// The process that traces it, such as a debugger; 0 if there is none.
  std::uint32_t tracer = 0;

  bool operator==(const process_sample&) const = default;
};

/// Two samples of one process.
struct sample_pair {
  process_sample before;
  process_sample now;
};

/// Why a process is silent.
enum class silence_cause : std::uint8_t {
  /// It would answer, or its node would hear it, if they got a processor.
  alive_but_starved = 1,
  /// It was stopped from outside. It may continue at any time, and must be rejected then.
  stopped = 2,
  /// It has ended.
  dead = 3,
  /// It can run, and does not answer.
  hung = 4,
  /// A debugger holds it. It continues when the debugger lets it.
  debugged = 5,
};

struct silence_verdict {
  silence_cause cause = silence_cause::hung;
  /// Whether it counts as silent: always, except for a starved process within its limit.
  bool is_silent = true;
  /// For people, a predicate of the process: "is stopped (SIGSTOP)".
  std::string reason;
};

/// A starved process is spared until it has been silent for this multiple of the timeout.
inline constexpr int spared_timeouts = 10;

/// Judges a process that has been silent for `silent_for` by samples of it and of its node's process: `before` was
/// taken when it became overdue (the same as `now` if there is none), `now` just now. Where the node gets no processor,
/// the silence may be its own. Pure.
[[nodiscard]] silence_verdict judge_silence(const sample_pair& process, const sample_pair& node,
                                            std::chrono::nanoseconds silent_for, std::chrono::nanoseconds timeout);

/// What keeps a killed process from ending: "uninterruptible sleep, in folio_wait_bit". Pure.
[[nodiscard]] std::string describe_unkillable(const process_sample& sample);

} // namespace troupe::actors
