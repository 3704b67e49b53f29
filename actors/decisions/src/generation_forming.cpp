#include <troupe/actors/decisions/generation_forming.hpp>

#include <algorithm>
#include <map>
#include <tuple>

namespace troupe::actors {

namespace {

bool has_state(const worker_record& who) {
  const auto* member = who.as<standing::active>();
  return member != nullptr && member->report && member->report->progress() != nullptr;
}

/// Assigns ranks such that the workers of a node have neighbouring ranks and members keep their order.
std::vector<worker_place> give_places(std::vector<worker_record*> who) {
  auto is_new = [](const worker_record* x) { return !x->came_after; };
  std::map<std::uint32_t, std::uint32_t> first_rank;
  for (const auto* each : who)
    if (!is_new(each)) {
      auto [i, added] = first_rank.emplace(each->place.node, each->place.rank.value);
      i->second = std::min(i->second, each->place.rank.value);
    }
  auto key = [&](const worker_record* x) {
    auto found = first_rank.find(x->place.node);
    auto node_first = found == first_rank.end() ? ~std::uint32_t{0} : found->second;
    return std::tuple{node_first, x->place.node, is_new(x), is_new(x) ? x->place.worker.value : x->place.rank.value};
  };
  std::ranges::sort(who, [&](const auto* a, const auto* b) { return key(a) < key(b); });
  std::map<std::uint32_t, std::uint32_t> on_node;
  for (std::uint32_t rank = 0; rank < who.size(); ++rank) {
    who[rank]->place.rank = rank_id{rank};
    who[rank]->place.local_rank = on_node[who[rank]->place.node]++;
  }
  std::vector<worker_place> result;
  for (auto* each : who) {
    each->place.local_world_size = on_node[each->place.node];
    result.push_back(each->place);
  }
  return result;
}

/// Members that joined since the last committed step, and one earlier member. The other earlier members equal that one:
/// they were compared when they joined, and slice by slice since.
std::vector<worker_id> choose_compared(const std::vector<worker_record*>& members, step_id commit_point) {
  auto is_new = [&](const worker_record* x) { return *x->came_after >= commit_point; };
  std::vector<worker_id> result;
  for (const auto* each : members)
    if (is_new(each))
      result.push_back(each->place.worker);
  if (result.empty())
    return result;
  auto before = std::ranges::find_if_not(members, is_new);
  if (before != members.end())
    result.push_back((*before)->place.worker);
  return result;
}

} // namespace

std::optional<collected_reports> collect_reports(worker_table& workers) {
  // Called at each report, so copy the reports only when all have arrived.
  if (workers.any(&worker_record::is_awaited))
    return std::nullopt;
  collected_reports result;
  for (auto& [id, who] : workers) {
    const auto* member = who.as<standing::active>();
    if (member == nullptr)
      continue;
    result.members.push_back(&who);
    if (!has_state(who))
      continue;
    result.with_state.push_back(*member->report);
    if (!member->report->is<worker_position::between_steps>() && !member->report->is<worker_position::caught_up>())
      result.point = report_point::in_step;
  }
  return result.members.empty() ? std::nullopt : std::optional{std::move(result)};
}

std::vector<worker_record*> choose_staying(const collected_reports& reports, std::vector<worker_id>& released) {
  const auto at_boundary = reports.point == report_point::boundary;
  const auto may_leave = at_boundary && std::ranges::any_of(reports.members, [](const worker_record* x) {
                           return has_state(*x) && !x->is_leaving();
                         });
  std::vector<worker_record*> result;
  for (auto* who : reports.members) {
    const auto cannot_stay = !has_state(*who) && !at_boundary;
    if (who->is_leaving() && (may_leave || cannot_stay)) {
      who->stands = standing::released{};
      released.push_back(who->place.worker);
    } else if (cannot_stay) {
      who->stands = standing::waiting{history_of(who->stands)};
    } else {
      result.push_back(who);
    }
  }
  return result;
}

void seat_members(const std::vector<worker_record*>& members, step_id commit_point, form_generation& next) {
  next.places = give_places(members);
  for (auto* who : members)
    if (!who->came_after || !has_state(*who))
      who->came_after = commit_point;
  next.compared = choose_compared(members, commit_point);
  for (auto* who : members) {
    if (!has_state(*who))
      next.joiners.push_back(who->place.worker);
    who->note_applied(commit_point);
    if (auto* member = who->as<standing::active>())
      member->report.reset();
    else
      who->stands = standing::active{.plan = {}, .report = {}, .history = history_of(who->stands)};
  }
}

generation_record describe_interruption(const collected_reports& reports, step_id commit_point) {
  generation_record result;
  for (const auto& report : reports.with_state)
    if (const auto* step = std::get_if<worker_position::in_step>(&report.position)) {
      result.interrupted_step = true;
      if (step->progress.committed == commit_point)
        result.steps_redone = 1;
    }
  return result;
}

} // namespace troupe::actors
