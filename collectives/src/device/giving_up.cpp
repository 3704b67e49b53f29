#include "device/giving_up.hpp"

#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unistd.h>
#include <utility>

namespace troupe::collectives {

namespace {

using rung = abort_ladder::rung;
using decision = abort_ladder::decision;

constexpr auto pause_between_looks = std::chrono::milliseconds{10};

/// What has come back from the threads, which may outlive whoever waits.
struct report {
  std::mutex mutex;
  std::condition_variable changed;
  /// Rungs that have ended, and whether they worked.
  std::deque<std::pair<rung, bool>> ended;
  bool is_last_holder = false;
  /// What was wrong with the last that did not work.
  std::string why;

  void end(rung which, bool worked) {
    {
      const std::lock_guard lock{mutex};
      ended.emplace_back(which, worked);
    }
    changed.notify_all();
  }
};

void ask_leave(const hang_policy& policy, const std::shared_ptr<report>& shared) {
  std::thread{[ask = policy.ask_leave, shared] {
    auto leave = ask ? ask() : fail(errc::not_found, "nobody is there to ask");
    {
      const std::lock_guard lock{shared->mutex};
      shared->is_last_holder = leave && leave->is_last_holder;
      shared->why = leave ? std::string{} : leave.error().message;
    }
    shared->end(rung::ask_leave, leave.has_value());
  }}.detach();
}

void try_call(rung which, const std::function<bool()>& call, const std::shared_ptr<report>& shared) {
  if (call)
    std::thread{[which, call, shared] { shared->end(which, call()); }}.detach();
}

void copy_out(const hang_policy& policy, const std::shared_ptr<report>& shared) {
  std::thread{[copy = policy.copy_out, shared] {
    const auto copied = copy ? copy() : fail(errc::not_found, "there is nowhere to copy it to");
    {
      const std::lock_guard lock{shared->mutex};
      shared->why = copied ? std::string{} : copied.error().message;
    }
    shared->end(rung::copy_out, copied.has_value());
  }}.detach();
}

void end_process(const hang_policy& policy, const error& why) {
  if (policy.end_process)
    return policy.end_process(why);
  std::fprintf(stderr, "troupe: %s\n", why.message.c_str());
  ::kill(::getpid(), SIGKILL);
}

/// The next end that is reported, or what time does to the ladder.
decision wait(abort_ladder& ladder, report& shared, const ladder_calls& calls) {
  std::optional<std::pair<rung, bool>> ended;
  bool is_last_holder = false;
  std::string why;
  {
    std::unique_lock lock{shared.mutex};
    shared.changed.wait_for(lock, pause_between_looks, [&] { return !shared.ended.empty(); });
    if (!shared.ended.empty()) {
      ended = shared.ended.front();
      shared.ended.pop_front();
    }
    is_last_holder = shared.is_last_holder;
    why = shared.why;
  }
  const auto now = abort_ladder::clock::now();
  // Before any answer: who has been spared asks for nothing.
  if (ladder.current() == rung::ask_leave && calls.has_let_go && calls.has_let_go())
    return ladder.on_let_go(now);
  if (!ended)
    return ladder.at(now);
  const auto [which, worked] = *ended;
  if (which == rung::ask_leave)
    return worked ? ladder.on_leave(is_last_holder, now) : ladder.on_leave_refused(why, now);
  return which == rung::copy_out ? ladder.on_copied(worked ? std::string{} : why, now)
                                 : ladder.on_call_ended(which, worked, now);
}

} // namespace

abort_ladder::deadlines limits_of(const hang_policy& policy) {
  return {policy.abort_deadline, policy.leave_deadline, policy.copy_deadline};
}

ladder_end climb(abort_ladder& ladder, decision first, const hang_policy& policy, const std::string& who,
                 const ladder_calls& calls) {
  auto shared = std::make_shared<report>();
  auto stands_on = rung::none;
  auto has_asked = false;
  // Why the process ends, from the rung on which that is decided.
  std::string story;
  for (auto next = std::move(first);; next = wait(ladder, *shared, calls)) {
    if (next.what == stands_on)
      continue;
    stands_on = next.what;
    has_asked = has_asked || stands_on == rung::ask_leave;
    if (has_asked && !next.reason.empty())
      story += (story.empty() ? "" : "; ") + next.reason;
    switch (stands_on) {
    case rung::none:
      break;
    case rung::revoke:
      try_call(stands_on, calls.revoke, shared);
      break;
    case rung::abort:
      try_call(stands_on, calls.abort, shared);
      break;
    case rung::ask_leave:
      ask_leave(policy, shared);
      break;
    case rung::copy_out:
      copy_out(policy, shared);
      break;
    case rung::end_process:
      end_process(policy, {errc::device_error, who + ": " + story});
      return ladder_end::ends_process;
    case rung::done:
      if (has_asked && policy.withdraw_leave)
        policy.withdraw_leave();
      return ladder.is_revoked() ? ladder_end::revoked : ladder_end::let_go;
    }
  }
}

} // namespace troupe::collectives
