#include "device/abort_escalation.hpp"

#include <fmt/format.h>
#include <utility>

namespace troupe::collectives {

namespace {

std::string text_of(std::chrono::milliseconds x) {
  return fmt::format("{} ms", x.count());
}

constexpr auto what_is_lost = "if no other process has it, the steps since the last checkpoint are lost";

} // namespace

abort_escalation::decision abort_escalation::go_to(stage next, clock::time_point now, std::string reason) {
  current_ = next;
  ends_at_ = now;
  switch (next) {
  case stage::revoke:
  case stage::abort:
    ends_at_ += limits_.abort;
    break;
  case stage::request_exit:
    ends_at_ += limits_.exit_permit;
    break;
  case stage::copy_out:
    ends_at_ += limits_.copy;
    break;
  case stage::none:
  case stage::end_process:
  case stage::done:
    break;
  }
  return {next, std::move(reason)};
}

abort_escalation::decision abort_escalation::begin(clock::time_point now) {
  if (current_ != stage::none)
    return at(now);
  return can_revoke_ ? go_to(stage::revoke, now, "the group was given up: revoking its operations")
                     : go_to(stage::abort, now, "the group was given up: aborting its operations");
}

abort_escalation::decision abort_escalation::begin_with_permit(const std::string& why, clock::time_point now) {
  if (current_ != stage::none)
    return at(now);
  return go_to(stage::request_exit, now, fmt::format("{}: this process must end and requests an exit permit", why));
}

abort_escalation::decision abort_escalation::at(clock::time_point now) {
  if (now < ends_at_)
    return {current_, {}};
  switch (current_) {
  case stage::revoke:
    return go_to(stage::abort, now,
                 fmt::format("NCCL did not revoke the group within {}: aborting it", text_of(limits_.abort)));
  case stage::abort:
    return go_to(stage::request_exit, now,
                 fmt::format("NCCL's abort did not return within {}: its kernels may still write, so this process must "
                             "end and requests an exit permit",
                             text_of(limits_.abort)));
  case stage::request_exit:
    // No answer: the run is over, or unreachable. Copying costs seconds; losing the state costs more.
    return go_to(stage::copy_out, now,
                 fmt::format("no exit permit within {}: the state is copied out, in case no other process has it",
                             text_of(limits_.exit_permit)));
  case stage::copy_out:
    return go_to(stage::end_process, now,
                 fmt::format("the state was not copied out within {}: {}", text_of(limits_.copy), what_is_lost));
  case stage::none:
  case stage::end_process:
  case stage::done:
    break;
  }
  return {current_, {}};
}

abort_escalation::decision abort_escalation::on_call_ended(stage which, bool worked, clock::time_point now) {
  // A late return of an earlier stage's call counts as well.
  const auto is_waited_for = current_ == stage::revoke || current_ == stage::abort || current_ == stage::request_exit;
  if (!is_waited_for || (which != stage::revoke && which != stage::abort))
    return {current_, {}};
  if (worked) {
    // After the abort has started the communicator is gone, whichever call returns first.
    is_revoked_ = which == stage::revoke && current_ == stage::revoke;
    if (which == stage::revoke && current_ != stage::revoke)
      return {current_, {}};
    return go_to(stage::done, now, {});
  }
  if (which == stage::revoke && current_ == stage::revoke)
    return go_to(stage::abort, now, "NCCL cannot revoke the group: aborting it");
  if (which == stage::abort && current_ == stage::abort)
    return go_to(
        stage::request_exit, now,
        "NCCL's abort failed: its kernels may still write, so this process must end and requests an exit permit");
  return {current_, {}};
}

abort_escalation::decision abort_escalation::on_exit(bool is_last_holder, clock::time_point now) {
  if (current_ != stage::request_exit)
    return {current_, {}};
  if (is_last_holder)
    return go_to(stage::copy_out, now, "no other process has the state: it is copied out first");
  return go_to(stage::end_process, now, "other processes have the state: this process may end");
}

abort_escalation::decision abort_escalation::on_exit_refused(const std::string& why, clock::time_point now) {
  if (current_ != stage::request_exit)
    return {current_, {}};
  return go_to(
      stage::copy_out, now,
      fmt::format("the exit permit cannot be requested ({}): the state is copied out, in case no other process has it",
                  why));
}

abort_escalation::decision abort_escalation::on_let_go(clock::time_point now) {
  return current_ == stage::request_exit ? go_to(stage::done, now, {}) : decision{current_, {}};
}

abort_escalation::decision abort_escalation::on_copied(const std::string& failure, clock::time_point now) {
  if (current_ != stage::copy_out)
    return {current_, {}};
  return go_to(stage::end_process, now,
               failure.empty() ? std::string{"the state is copied out"}
                               : fmt::format("the state cannot be copied out ({}): {}", failure, what_is_lost));
}

} // namespace troupe::collectives
