#include <troupe/actors/decisions/silence.hpp>

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace troupe::actors {

namespace {

using std::chrono::nanoseconds;

/// "1.4", in seconds.
std::string seconds(nanoseconds x) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f", std::chrono::duration<double>(x).count());
  return text.data();
}

/// What happened to a process between two looks.
struct span_between {
  nanoseconds window;
  nanoseconds cpu;
  /// Threads that have ended took their waits with them: never less than zero.
  nanoseconds waited;

  span_between(const process_sample& before, const process_sample& now)
      : window(now.when - before.when),
        cpu(now.cpu - before.cpu),
        waited(before.run_delay && now.run_delay ? std::max(*now.run_delay - *before.run_delay, nanoseconds{0})
                                                 : nanoseconds{0}) {}
};

/// Why it looks starved; empty if it does not.
std::string signs_of_starvation(const span_between& span, char state) {
  if (span.window.count() > 0 && span.waited * 2 >= span.window) {
    if (span.waited <= span.window)
      return "has waited for a processor for " + seconds(span.waited) + " of " + seconds(span.window) + " s";
    return "has threads that have waited for a processor, together for " + seconds(span.waited) + " s in " +
           seconds(span.window) + " s";
  }
  // The kernel counts a wait when it ends: who has waited all the time shows neither waits nor processor time.
  if (state == 'R' && span.cpu * 10 <= span.window)
    return "is ready to run and got " + seconds(span.cpu) + " s of processor time in " + seconds(span.window) + " s";
  return {};
}

std::string signs_of_hanging(const span_between& span, char state) {
  if (state == 'D')
    return "is in uninterruptible sleep (a device or a file system that does not answer, or a paused container)";
  if (state == 'R' || span.cpu * 10 > span.window)
    return "computes (" + seconds(span.cpu) + " s of processor time in " + seconds(span.window) +
           " s) and does not answer";
  return "sleeps and does not answer";
}

} // namespace

silence_verdict judge_silence(const process_sample& before, const process_sample& now, nanoseconds silent_for,
                              nanoseconds timeout) {
  switch (now.state) {
  case 'X':
    return {silence_cause::dead, true, "is gone"};
  case 'Z':
    return {silence_cause::dead, true, "has ended"};
  case 'T':
    return {silence_cause::stopped, true, "is stopped (SIGSTOP, or a debugger)"};
  case 't':
    return {silence_cause::stopped, true, "is stopped by a debugger"};
  default:
    break;
  }
  auto span = span_between{before, now};
  auto limit = spared_timeouts * timeout;
  if (auto reason = signs_of_starvation(span, now.state); !reason.empty()) {
    if (silent_for < limit)
      return {silence_cause::alive_but_starved, false, std::move(reason)};
    return {silence_cause::alive_but_starved, true,
            std::move(reason) + ", silent for " + seconds(silent_for) + " s: longer than the " + seconds(limit) +
                " s for which this is put up with"};
  }
  return {silence_cause::hung, true, signs_of_hanging(span, now.state)};
}

} // namespace troupe::actors
