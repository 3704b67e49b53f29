#include "device/abort_ladder.hpp"

#include <utility>

namespace troupe::collectives {

namespace {

std::string text_of(std::chrono::milliseconds x) {
  return std::to_string(x.count()) + " ms";
}

constexpr auto what_is_lost = "if nobody else has it, the steps since the last checkpoint are lost";

} // namespace

abort_ladder::decision abort_ladder::go_to(rung next, clock::time_point now, std::string reason) {
  current_ = next;
  ends_at_ = now;
  switch (next) {
  case rung::revoke:
  case rung::abort:
    ends_at_ += limits_.abort;
    break;
  case rung::ask_leave:
    ends_at_ += limits_.leave;
    break;
  case rung::copy_out:
    ends_at_ += limits_.copy;
    break;
  case rung::none:
  case rung::end_process:
  case rung::done:
    break;
  }
  return {next, std::move(reason)};
}

abort_ladder::decision abort_ladder::begin(clock::time_point now) {
  if (current_ != rung::none)
    return at(now);
  return can_revoke_ ? go_to(rung::revoke, now, "the group is given up: its operations are revoked")
                     : go_to(rung::abort, now, "the group is given up: its operations are aborted");
}

abort_ladder::decision abort_ladder::begin_with_leave(const std::string& why, clock::time_point now) {
  if (current_ != rung::none)
    return at(now);
  return go_to(rung::ask_leave, now, why + ": this process has to end, and asks for leave");
}

abort_ladder::decision abort_ladder::at(clock::time_point now) {
  if (now < ends_at_)
    return {current_, {}};
  switch (current_) {
  case rung::revoke:
    return go_to(rung::abort, now,
                 "NCCL has not revoked the group within " + text_of(limits_.abort) + ": it is aborted");
  case rung::abort:
    return go_to(rung::ask_leave, now,
                 "NCCL has not come back from its abort within " + text_of(limits_.abort) +
                     ": its kernels may write on, so this process has to end, and asks for leave");
  case rung::ask_leave:
    // Nobody answers: the run is over, or cannot be reached. To copy costs seconds; to lose the state costs more.
    return go_to(rung::copy_out, now,
                 "no leave was given within " + text_of(limits_.leave) +
                     ": the state is copied out, in case that nobody else has it");
  case rung::copy_out:
    return go_to(rung::end_process, now,
                 "the state was not copied out within " + text_of(limits_.copy) + ": " + what_is_lost);
  case rung::none:
  case rung::end_process:
  case rung::done:
    break;
  }
  return {current_, {}};
}

abort_ladder::decision abort_ladder::on_call_ended(rung which, bool worked, clock::time_point now) {
  // A call of an earlier rung may come back late: it is as good.
  const auto is_waited_for = current_ == rung::revoke || current_ == rung::abort || current_ == rung::ask_leave;
  if (!is_waited_for || (which != rung::revoke && which != rung::abort))
    return {current_, {}};
  if (worked) {
    // Once it was told to abort it is gone, whatever comes back first.
    is_revoked_ = which == rung::revoke && current_ == rung::revoke;
    if (which == rung::revoke && current_ != rung::revoke)
      return {current_, {}};
    return go_to(rung::done, now, {});
  }
  if (which == rung::revoke && current_ == rung::revoke)
    return go_to(rung::abort, now, "NCCL cannot revoke the group: it is aborted");
  if (which == rung::abort && current_ == rung::abort)
    return go_to(rung::ask_leave, now,
                 "NCCL's abort has failed: its kernels may write on, so this process has to end, and asks for leave");
  return {current_, {}};
}

abort_ladder::decision abort_ladder::on_leave(bool is_last_holder, clock::time_point now) {
  if (current_ != rung::ask_leave)
    return {current_, {}};
  if (is_last_holder)
    return go_to(rung::copy_out, now, "nobody else has the state: it is copied out first");
  return go_to(rung::end_process, now, "others have the state: this process may end");
}

abort_ladder::decision abort_ladder::on_leave_refused(const std::string& why, clock::time_point now) {
  if (current_ != rung::ask_leave)
    return {current_, {}};
  return go_to(rung::copy_out, now,
               "leave cannot be asked for (" + why + "): the state is copied out, in case that nobody else has it");
}

abort_ladder::decision abort_ladder::on_let_go(clock::time_point now) {
  return current_ == rung::ask_leave ? go_to(rung::done, now, {}) : decision{current_, {}};
}

abort_ladder::decision abort_ladder::on_copied(const std::string& failure, clock::time_point now) {
  if (current_ != rung::copy_out)
    return {current_, {}};
  return go_to(rung::end_process, now,
               failure.empty() ? std::string{"the state is copied out"}
                               : "the state cannot be copied out (" + failure + "): " + what_is_lost);
}

} // namespace troupe::collectives
