#include <troupe/actors/decisions/worker_table.hpp>

#include <troupe/actors/decisions/plural.hpp>

#include <fmt/format.h>

#include <type_traits>

namespace troupe::actors {

joiner_history history_of(const worker_standing& x) {
  return std::visit(
      [](const auto& now) -> joiner_history {
        if constexpr (requires { now.history; })
          return now.history;
        else if constexpr (requires { now.since; })
          return {now.since};
        else
          return {};
      },
      x);
}

bool worker_record::is_caught_up() const noexcept {
  const auto* follower = as<standing::following>();
  return follower != nullptr && follower->now == standing::following::distance::caught_up;
}

bool worker_record::is_awaited() const noexcept {
  const auto* member = as<standing::active>();
  return member != nullptr && !member->report;
}

bool worker_record::surely_has_state(step_id first_step) const noexcept {
  const auto* member = as<standing::active>();
  if (member == nullptr)
    return false;
  if (member->report)
    return member->report->progress() != nullptr;
  return came_after && (*came_after <= first_step || applied > *came_after);
}

void worker_record::note_sign_of_life(std::uint64_t progress, run_time now) {
  auto* joiner = as<standing::preparing>();
  if (joiner != nullptr && std::exchange(joiner->history.progress, progress) != progress)
    joiner->history.since = now;
}

void worker_record::note_loop(std::uint32_t loop) {
  std::visit(
      [&](auto& now) {
        if constexpr (requires { now.history; })
          now.history.loop = loop;
      },
      stands);
}

std::string name_of(const worker_place& place) {
  return fmt::format("worker {} (rank {})", place.worker, place.rank);
}

std::string describe_joining(const std::vector<worker_record*>& joiners) {
  auto result = std::string{};
  for (const auto* each : joiners)
    result += (result.empty() ? "" : ", ") + name_of(each->place);
  return result + (joiners.size() == 1 ? " joins" : " join");
}

std::string count_workers(std::uint64_t n) {
  return plural(n, "worker");
}

void worker_table::add(const worker_place& place, step_id applied, run_time now) {
  workers_.emplace(place.worker, worker_record{place, standing::started{now}, {}, {}, 0, {}, applied, {}});
}

worker_record* worker_table::find(worker_id worker) {
  auto i = workers_.find(worker);
  return i == workers_.end() ? nullptr : &i->second;
}

const worker_record* worker_table::find(worker_id worker) const {
  auto i = workers_.find(worker);
  return i == workers_.end() ? nullptr : &i->second;
}

std::uint32_t worker_table::staying() const {
  return count([](const worker_record& x) { return x.is_active() && !x.is_leaving(); });
}

std::uint32_t worker_table::leaving() const {
  return count([](const worker_record& x) { return x.is_active() && x.is_leaving(); });
}

bool worker_table::all_members_have_ended() const {
  return all(
      [](const worker_record& x) { return x.is_joining() || is_any<standing::dismissed, standing::ended>(x.stands); });
}

bool worker_table::any_ended_by_itself() const {
  return any([](const worker_record& x) {
    const auto* ended = x.as<standing::ended>();
    return ended != nullptr && ended->who == ended_by::itself;
  });
}

step_id worker_table::furthest() const {
  auto result = step_id{};
  for (const auto& [id, who] : workers_)
    result = std::max(result, who.applied);
  return result;
}

std::string worker_table::missing() const {
  auto result = std::string{};
  for (const auto& [id, who] : workers_)
    if (who.is<standing::started>())
      result += (result.empty() ? "" : ", ") + name_of(who.place);
  return result;
}

void worker_table::forget_plans() {
  for (auto& [id, who] : workers_)
    if (auto* member = who.as<standing::active>())
      member->plan.reset();
}

std::string worker_table::awaited_reports() const {
  auto result = std::string{};
  for (const auto& [id, who] : workers_)
    if (who.is_awaited())
      result += (result.empty() ? "" : ", ") + name_of(who.place) + (who.host.empty() ? "" : " on " + who.host);
  return result;
}

void worker_table::restart_deadlines(std::uint32_t node, run_time now) {
  for (auto& [id, who] : workers_)
    if (who.place.node == node)
      std::visit(
          [now](auto& stands) {
            if constexpr (requires { stands.since; })
              stands.since = now;
            else if constexpr (requires { stands.history; })
              stands.history.since = now;
          },
          who.stands);
}

std::vector<worker_table::loss> worker_table::end_all_on(std::uint32_t node) {
  std::vector<loss> result;
  for (auto& [id, who] : workers_)
    if (who.place.node == node && !who.is<standing::ended>())
      result.push_back({&who, std::exchange(who.stands, standing::ended{ended_by::outside})});
  return result;
}

std::vector<worker_place> worker_table::occupied() const {
  std::vector<worker_place> result;
  for (const auto& [id, who] : workers_)
    if (!who.is<standing::ended>())
      result.push_back(who.place);
  return result;
}

void worker_table::keep_needed(std::uint32_t wanted) {
  auto staying_now = staying();
  for (auto& [id, who] : workers_)
    if (who.is_active() && who.leaves == departure::surplus && staying_now < wanted) {
      who.leaves = departure::none;
      ++staying_now;
    }
}

void worker_table::mark_surplus(std::uint32_t wanted) {
  std::vector<worker_record*> staying;
  for (auto& [id, who] : workers_)
    if (who.is_active() && !who.is_leaving())
      staying.push_back(&who);
  std::ranges::sort(staying, {}, [](const worker_record* x) { return x->place.rank; });
  for (auto i = std::size_t{wanted}; i < staying.size(); ++i)
    staying[i]->leaves = departure::surplus;
}

} // namespace troupe::actors
