#include <troupe/actors/decisions/attempt_state.hpp>

namespace troupe::actors {

using namespace attempt_phase;

bool attempt_state::is_held() const noexcept {
  const auto* now = std::get_if<regrouping>(&phase_);
  return now != nullptr && now->next == regrouping::forming::held;
}

std::optional<std::string> attempt_state::cause() const {
  if (const auto* now = std::get_if<regrouping>(&phase_))
    return now->cause;
  if (const auto* now = std::get_if<training>(&phase_); now != nullptr && now->asked)
    return now->asked->cause;
  return std::nullopt;
}

std::optional<std::uint64_t> attempt_state::checkpoint() const {
  if (const auto* now = std::get_if<regrouping>(&phase_))
    return now->checkpoint;
  if (const auto* now = std::get_if<training>(&phase_); now != nullptr && now->asked)
    return now->asked->checkpoint;
  return std::nullopt;
}

bool attempt_state::ask_for_regroup(const std::string& cause) {
  auto* now = std::get_if<training>(&phase_);
  if (now == nullptr || now->asked)
    return false;
  now->asked = regroup_request{cause, {}};
  return true;
}

void attempt_state::require_checkpoint(std::uint64_t number) {
  std::get<training>(phase_).asked->checkpoint = number;
}

void attempt_state::begin_regrouping(std::string cause) {
  phase_ = regrouping{.cause = std::move(cause), .checkpoint = checkpoint(), .waits = {}};
}

bool attempt_state::abort_group() {
  auto& before = std::get<regrouping>(phase_).before;
  return std::exchange(before, regrouping::group::aborted) == regrouping::group::intact;
}

std::optional<run_time> attempt_state::waiting_since(run_time now) {
  auto* regroups = std::get_if<regrouping>(&phase_);
  if (regroups == nullptr || !regroups->waits)
    return std::nullopt;
  auto& since = regroups->waits->since;
  since = since.value_or(now);
  return since;
}

void attempt_state::wait_for_followers() {
  auto& waits = std::get<regrouping>(phase_).waits;
  if (!waits)
    waits.emplace();
}

bool attempt_state::hold() {
  auto& next = std::get<regrouping>(phase_).next;
  return std::exchange(next, regrouping::forming::held) == regrouping::forming::open;
}

void attempt_state::resume(const std::string& cause) {
  if (auto* now = std::get_if<regrouping>(&phase_)) {
    now->next = regrouping::forming::open;
    now->cause = cause;
  } else if (auto* before = std::get_if<training>(&phase_); before != nullptr && before->asked) {
    before->asked->cause = cause;
  }
}

} // namespace troupe::actors
