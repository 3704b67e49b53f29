#include <troupe/actors/decisions/last_copy.hpp>

#include <fmt/format.h>

#include <chrono>
#include <tuple>
#include <utility>

namespace troupe::actors {

using namespace copy_phase;

namespace {

using namespace std::chrono_literals;

/// All members are waited for so long, and then the first that has the state.
constexpr auto all_report_within = 2s;
constexpr auto one_reports_within = 10s;

/// How long saving may take.
constexpr auto saved_within = 60s;

/// How long the training functions may take to end afterwards.
constexpr auto ended_within = 2s;

/// The latest step whose state this member can save. It applies the step after the one that it has committed if it
/// holds that step's gradient, and if some worker has applied that step, so that it counts.
step_id latest_of(const regroup_report& report, step_id furthest) {
  const auto committed = report.progress()->committed;
  const auto* step = std::get_if<worker_position::in_step>(&report.position);
  const auto holds_it = step != nullptr && step->holds_gradient && furthest.value == committed.value + 1;
  return holds_it ? furthest : committed;
}

bool is_past(std::optional<run_time>& since, run_time now, std::chrono::seconds limit) {
  since = since.value_or(now);
  return now - *since > limit;
}

} // namespace

run_actions last_copy::begin(worker_table& workers) {
  run_actions actions;
  for (const auto& [id, who] : workers)
    if (who.is_joining())
      actions.push_back({refuse_report{id, reason_}, "the run ends"});
  append(actions, std::holds_alternative<over>(phase_) ? end(workers) : go_on(workers));
  return actions;
}

run_actions last_copy::on_report(worker_table& workers, worker_record& who, const regroup_report& report) {
  auto* member = who.as<standing::active>();
  if (member == nullptr || std::holds_alternative<over>(phase_) || is_asked(report.worker))
    return {{refuse_report{report.worker, reason_}, "the run ends"}};
  member->report = report;
  return go_on(workers);
}

bool last_copy::is_asked(worker_id worker) const noexcept {
  const auto* now = std::get_if<saving>(&phase_);
  return now != nullptr && now->who == worker;
}

run_actions last_copy::on_finished(worker_table& workers, worker_id worker, errc reason) {
  const auto* now = std::get_if<saving>(&phase_);
  if (now == nullptr || now->who != worker)
    return go_on(workers);
  if (reason == reason_.code) {
    known_ = now->step;
    // A late member may have committed more.
    if (!choose(workers))
      return end(workers);
  } else if (now->step > now->committed) {
    // Its training function could not apply the step, so the others' cannot either.
    held_ = held_steps::left_out;
  }
  phase_ = collecting{{}, true};
  return go_on(workers);
}

run_actions last_copy::on_ended(worker_table& workers, worker_id worker) {
  if (is_asked(worker))
    phase_ = collecting{{}, true};
  return go_on(workers);
}

run_actions last_copy::on_tick(worker_table& workers, run_time now) {
  if (auto* collects = std::get_if<collecting>(&phase_)) {
    collects->is_late = is_past(collects->since, now, all_report_within) || collects->is_late;
    if (is_past(collects->since, now, one_reports_within))
      return end(workers);
  } else if (auto* saves = std::get_if<saving>(&phase_)) {
    if (is_past(saves->since, now, saved_within))
      return end(workers);
  } else {
    auto& waits = std::get<over>(phase_);
    waits.is_late = is_past(waits.since, now, ended_within);
  }
  return go_on(workers);
}

bool last_copy::is_overdue() const noexcept {
  const auto* now = std::get_if<over>(&phase_);
  return now != nullptr && now->is_late;
}

/// The member that can save the latest step; of several, the one with the lowest rank.
std::optional<last_copy::candidate> last_copy::choose(const worker_table& workers) const {
  std::optional<candidate> best;
  const auto furthest = held_ == held_steps::applied ? workers.furthest() : step_id{};
  for (const auto& [id, who] : workers) {
    const auto* member = who.as<standing::active>();
    if (member == nullptr || !member->report || member->report->progress() == nullptr)
      continue;
    const auto step = latest_of(*member->report, furthest);
    if (step > known_ && (!best || std::tuple{best->step, who.place.rank} < std::tuple{step, best->place.rank}))
      best = candidate{who.place, step, member->report->progress()->committed};
  }
  return best;
}

run_actions last_copy::go_on(worker_table& workers) {
  auto* now = std::get_if<collecting>(&phase_);
  const auto is_awaited = workers.any(&worker_record::is_awaited);
  if (now == nullptr || (is_awaited && !now->is_late))
    return {};
  const auto best = choose(workers);
  if (!best)
    return is_awaited ? run_actions{} : end(workers);
  phase_ = saving{best->place.worker, best->step, best->committed, {}};
  return {{save_state{best->place.worker, reason_, best->step},
           fmt::format("{} saves the state of step {} before the run ends", name_of(best->place), best->step)}};
}

/// Refuses all members that wait.
run_actions last_copy::end(worker_table& workers) {
  if (!std::holds_alternative<over>(phase_))
    phase_ = over{};
  run_actions actions;
  for (auto& [id, who] : workers)
    if (auto* member = who.as<standing::active>(); member != nullptr && std::exchange(member->report, std::nullopt))
      actions.push_back({refuse_report{id, reason_}, "the run ends"});
  return actions;
}

} // namespace troupe::actors
