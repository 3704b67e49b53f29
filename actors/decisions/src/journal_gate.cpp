#include <troupe/actors/decisions/journal_gate.hpp>

#include <algorithm>
#include <set>
#include <utility>
#include <variant>

namespace troupe::actors {

namespace {

/// Whether workers learn something that the next driver must know.
bool has_consequences(const run_action& x) {
  return std::holds_alternative<begin_all>(x.what) || std::holds_alternative<accept_plans>(x.what) ||
         std::holds_alternative<send_command>(x.what) || std::holds_alternative<form_generation>(x.what);
}

std::set<worker_id> members_of(const control_state& x) {
  std::set<worker_id> result;
  for (const auto& each : x.members)
    result.insert(each.place.worker);
  return result;
}

} // namespace

bool covers(const control_state& kept, const control_state& now) {
  return kept.attempt == now.attempt && kept.generation == now.generation && kept.plans == now.plans &&
         kept.commands == now.commands && kept.asked == now.asked && kept.workers == now.workers &&
         members_of(kept) == members_of(now);
}

void journal_gate::add(run_actions actions, std::optional<control_state> now) {
  if (now)
    latest_ = {latest_.number + 1, std::move(*now)};
  if (actions.empty())
    return;
  auto after = std::uint64_t{0};
  // The run ends, so drop all waiting actions.
  if (std::ranges::any_of(actions, [](const run_action& x) { return std::holds_alternative<conclude>(x.what); }))
    waiting_.clear();
  else if (std::ranges::any_of(actions, has_consequences))
    after = covers(kept_.state, latest_.state)                   ? kept_.number
            : writing_ && covers(writing_->state, latest_.state) ? writing_->number
                                                                 : latest_.number;
  waiting_.push_back({std::move(actions), after});
}

std::optional<run_actions> journal_gate::next() {
  if (waiting_.empty() || (waiting_.front().after > kept_.number && !is_late_))
    return std::nullopt;
  auto result = std::move(waiting_.front().actions);
  waiting_.pop_front();
  return result;
}

std::optional<control_state> journal_gate::begin_write() {
  if (writing_ || latest_.number == kept_.number)
    return std::nullopt;
  writing_ = latest_;
  return writing_->state;
}

void journal_gate::on_written() {
  kept_ = std::move(*std::exchange(writing_, std::nullopt));
  is_late_ = false;
}

} // namespace troupe::actors
