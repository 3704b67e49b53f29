#include "device/giving_up.hpp"

#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <deque>
#include <fmt/format.h>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unistd.h>
#include <utility>

namespace troupe::collectives {

namespace {

using stage = abort_escalation::stage;
using decision = abort_escalation::decision;

constexpr auto end_poll_interval = std::chrono::milliseconds{10};

/// The results of the threads, which may outlive the waiting thread.
struct report {
  std::mutex mutex;
  std::condition_variable changed;
  /// Stages that have ended, and whether they worked.
  std::deque<std::pair<stage, bool>> ended;
  bool is_last_holder = false;
  /// The error of the last stage that failed.
  std::string why;

  void end(stage which, bool worked) {
    {
      const std::lock_guard lock{mutex};
      ended.emplace_back(which, worked);
    }
    changed.notify_all();
  }
};

void request_exit(const hang_policy& policy, const std::shared_ptr<report>& shared) {
  std::thread{[ask = policy.request_exit, shared] {
    auto permit = ask ? ask() : fail(errc::not_found, "no collectives actor to ask");
    {
      const std::lock_guard lock{shared->mutex};
      shared->is_last_holder = permit && permit->is_last_holder;
      shared->why = permit ? std::string{} : permit.error().message;
    }
    shared->end(stage::request_exit, permit.has_value());
  }}.detach();
}

void try_call(stage which, const std::function<bool()>& call, const std::shared_ptr<report>& shared) {
  if (call)
    std::thread{[which, call, shared] { shared->end(which, call()); }}.detach();
}

void copy_out(const hang_policy& policy, const std::shared_ptr<report>& shared) {
  std::thread{[copy = policy.copy_out, shared] {
    const auto copied = copy ? copy() : fail(errc::not_found, "there is no place to copy it to");
    {
      const std::lock_guard lock{shared->mutex};
      shared->why = copied ? std::string{} : copied.error().message;
    }
    shared->end(stage::copy_out, copied.has_value());
  }}.detach();
}

void end_process(const hang_policy& policy, const error& why) {
  if (policy.end_process)
    return policy.end_process(why);
  std::fprintf(stderr, "troupe: %s\n", why.message.c_str());
  ::kill(::getpid(), SIGKILL);
}

/// Waits for the next result, or for the escalation's next deadline.
decision wait(abort_escalation& escalation, report& shared, const escalation_calls& calls) {
  std::optional<std::pair<stage, bool>> ended;
  bool is_last_holder = false;
  std::string why;
  {
    std::unique_lock lock{shared.mutex};
    shared.changed.wait_for(lock, end_poll_interval, [&] { return !shared.ended.empty(); });
    if (!shared.ended.empty()) {
      ended = shared.ended.front();
      shared.ended.pop_front();
    }
    is_last_holder = shared.is_last_holder;
    why = shared.why;
  }
  const auto now = abort_escalation::clock::now();
  // Checked before an answer: a process that is spared needs no permit.
  if (escalation.current() == stage::request_exit && calls.has_let_go && calls.has_let_go())
    return escalation.on_let_go(now);
  if (!ended)
    return escalation.at(now);
  const auto [which, worked] = *ended;
  if (which == stage::request_exit)
    return worked ? escalation.on_exit(is_last_holder, now) : escalation.on_exit_refused(why, now);
  return which == stage::copy_out ? escalation.on_copied(worked ? std::string{} : why, now)
                                  : escalation.on_call_ended(which, worked, now);
}

} // namespace

abort_escalation::deadlines limits_of(const hang_policy& policy) {
  return {policy.abort_deadline, policy.exit_permit_deadline, policy.copy_deadline};
}

escalation_end escalate(abort_escalation& escalation, decision first, const hang_policy& policy, const std::string& who,
                        const escalation_calls& calls) {
  auto shared = std::make_shared<report>();
  auto stands_on = stage::none;
  auto has_asked = false;
  // Why the process ends, from the stage that decides it.
  std::string story;
  for (auto next = std::move(first);; next = wait(escalation, *shared, calls)) {
    if (next.what == stands_on)
      continue;
    stands_on = next.what;
    has_asked = has_asked || stands_on == stage::request_exit;
    if (has_asked && !next.reason.empty())
      story += (story.empty() ? "" : "; ") + next.reason;
    switch (stands_on) {
    case stage::none:
      break;
    case stage::revoke:
      try_call(stands_on, calls.revoke, shared);
      break;
    case stage::abort:
      try_call(stands_on, calls.abort, shared);
      break;
    case stage::request_exit:
      request_exit(policy, shared);
      break;
    case stage::copy_out:
      copy_out(policy, shared);
      break;
    case stage::end_process:
      end_process(policy, {errc::device_error, fmt::format("{}: {}", who, story)});
      return escalation_end::ends_process;
    case stage::done:
      if (has_asked && policy.withdraw_exit)
        policy.withdraw_exit();
      return escalation.is_revoked() ? escalation_end::revoked : escalation_end::let_go;
    }
  }
}

} // namespace troupe::collectives
