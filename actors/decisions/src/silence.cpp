#include <troupe/actors/decisions/silence.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

using std::chrono::nanoseconds;

/// "1.4", in seconds.
std::string seconds(nanoseconds x) {
  return fmt::format("{:.1f}", std::chrono::duration<double>(x).count());
}

/// What happened to a process between two samples.
struct span_between {
  nanoseconds window;
  nanoseconds cpu;
  /// Threads that have ended took their waits with them: never less than zero.
  nanoseconds waited;

  explicit span_between(const sample_pair& x)
      : window(x.now.when - x.before.when),
        cpu(x.now.cpu - x.before.cpu),
        waited(x.before.run_delay && x.now.run_delay ? std::max(*x.now.run_delay - *x.before.run_delay, nanoseconds{0})
                                                     : nanoseconds{0}) {}
};

/// Why it looks starved; empty if it does not.
std::string signs_of_starvation(const span_between& span, char state) {
  if (span.window.count() > 0 && span.waited * 2 >= span.window) {
    if (span.waited <= span.window)
      return fmt::format("has waited for a processor for {} of {} s", seconds(span.waited), seconds(span.window));
    return fmt::format("has threads that have waited for a processor, together for {} s in {} s", seconds(span.waited),
                       seconds(span.window));
  }
  // The kernel counts a wait when it ends: a thread that waits all the time shows neither waits nor processor time.
  if (state == 'R' && span.cpu * 10 <= span.window)
    return fmt::format("is ready to run and got {} s of processor time in {} s", seconds(span.cpu),
                       seconds(span.window));
  return {};
}

std::string sleeps_in(const process_sample& sample) {
  return sample.waits_in.empty() ? std::string{} : ", in " + sample.waits_in;
}

std::string describe_tracer(const process_sample& sample) {
  return sample.tracer == 0 ? std::string{} : fmt::format(" (process {})", sample.tracer);
}

std::string signs_of_hanging(const span_between& span, const process_sample& now) {
  const auto state = now.state;
  if (state == 'D')
    return "is in uninterruptible sleep" + sleeps_in(now) +
           " (a device or a file system that does not answer, or a paused container)";
  if (state == 'R' || span.cpu * 10 > span.window)
    return fmt::format("computes ({} s of processor time in {} s) and does not answer", seconds(span.cpu),
                       seconds(span.window));
  return "sleeps and does not answer";
}

} // namespace

silence_verdict judge_silence(const sample_pair& process, const sample_pair& node, nanoseconds silent_for,
                              nanoseconds timeout) {
  const auto state = process.now.state;
  switch (state) {
  case 'X':
    return {silence_cause::dead, true, "is gone"};
  case 'Z':
    return {silence_cause::dead, true, "has ended"};
  case 'T':
    return {silence_cause::stopped, true, "is stopped (SIGSTOP)"};
  case 't':
    return {silence_cause::debugged, true, "is held by a debugger" + describe_tracer(process.now)};
  default:
    break;
  }
  auto span = span_between{process};
  auto limit = spared_timeouts * timeout;
  auto reason = signs_of_starvation(span, state);
  if (reason.empty()) {
    // The node runs while it takes samples of itself: that it is ready to run says nothing.
    if (auto busy = signs_of_starvation(span_between{node}, 'S'); !busy.empty())
      reason = fmt::format("{}, but its node {}", signs_of_hanging(span, process.now), busy);
  }
  if (!reason.empty()) {
    if (silent_for < limit)
      return {silence_cause::alive_but_starved, false, std::move(reason)};
    return {silence_cause::alive_but_starved, true,
            fmt::format("{}, silent for {} s: longer than the {} s that a starved process is given", reason,
                        seconds(silent_for), seconds(limit))};
  }
  return {silence_cause::hung, true, signs_of_hanging(span, process.now)};
}

std::string describe_unkillable(const process_sample& sample) {
  switch (sample.state) {
  case 'D':
    return "uninterruptible sleep" + sleeps_in(sample);
  case 'Z':
  case 'X':
    return "it has ended, and its children or its parent hold it";
  default:
    return fmt::format("the kernel has not ended it yet (state {})", sample.state);
  }
}

} // namespace troupe::actors
