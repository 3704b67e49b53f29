#include <troupe/actors/decisions/member_table.hpp>

#include <algorithm>
#include <tuple>
#include <utility>

namespace troupe::actors {

namespace {

std::chrono::milliseconds since(member_table::time_point then, member_table::time_point now) {
  return std::max(std::chrono::duration_cast<std::chrono::milliseconds>(now - then), std::chrono::milliseconds{0});
}

} // namespace

bool member_table::is_silent(const entry& x, time_point now) const {
  return now - x.heard > how_.silent_after || (x.lost < now && now - x.lost > how_.silent_after_loss);
}

bool member_table::replaces(const cluster_member& next, source from, const entry& known, time_point now) const {
  if (next.started > known.what.started)
    // Nobody else may say that a member that speaks here was started again.
    return from == source::itself || known.from == source::another || is_silent(known, now) || has_left(known);
  // A clock that was set back.
  return from == source::itself && (known.from == source::another || is_silent(known, now) || has_left(known));
}

bool member_table::make_room(time_point now) {
  if (members_.size() < how_.most)
    return true;
  auto oldest = members_.end();
  for (auto i = members_.begin(); i != members_.end(); ++i)
    if ((is_silent(i->second, now) || has_left(i->second)) &&
        (oldest == members_.end() || i->second.heard < oldest->second.heard))
      oldest = i;
  if (oldest == members_.end())
    return false;
  members_.erase(oldest);
  return true;
}

member_table::outcome member_table::hear(const cluster_member& member, source from, time_point now) {
  const auto outcome_of = [&](outcome otherwise) {
    return member.phase == member_phase::leaving ? outcome::left : otherwise;
  };
  const auto found = members_.find(member.address);
  if (found == members_.end()) {
    if (!make_room(now))
      return outcome::full;
    members_.emplace(member.address, entry{member, from, now});
    return outcome_of(outcome::joined);
  }
  auto& known = found->second;
  if (member.started != known.what.started) {
    if (!replaces(member, from, known, now))
      return outcome::stale;
    known = {member, from, now};
    return outcome_of(outcome::joined);
  }
  if (member.beat <= known.what.beat)
    return outcome::stale;
  const auto was_silent = is_silent(known, now) && known.is_reported;
  // Heard itself once, it is not another's word any more as long as it lives here.
  const auto way = from == source::itself || is_silent(known, now) ? from : known.from;
  known = {member, way, now};
  return outcome_of(was_silent ? outcome::joined : outcome::heard);
}

void member_table::note_loss(const std::string& address, time_point now) {
  if (const auto found = members_.find(address); found != members_.end() && found->second.from == source::itself)
    found->second.lost = now;
}

std::vector<std::string> member_table::take_silent(time_point now) {
  std::vector<std::string> result;
  for (auto& [address, each] : members_)
    if (!has_left(each) && !each.is_reported && is_silent(each, now)) {
      each.is_reported = true;
      result.push_back(address);
    }
  std::erase_if(members_, [&](const auto& x) { return now - x.second.heard > how_.forget_after; });
  return result;
}

std::vector<listed_member> member_table::list(time_point now) const {
  std::vector<listed_member> result;
  for (const auto& [address, each] : members_)
    if (!has_left(each) || !is_silent(each, now))
      result.push_back({each.what, is_silent(each, now), since(each.heard, now)});
  return result;
}

std::vector<cluster_member> member_table::to_pass_on(time_point now) const {
  std::vector<cluster_member> result;
  for (const auto& [address, each] : members_)
    if (!is_silent(each, now))
      result.push_back(each.what);
  return result;
}

std::vector<listed_member> merge_members(std::vector<listed_member> all) {
  const auto later_first = [](const listed_member& a, const listed_member& b) {
    return std::tuple{a.what.address, b.what.started, b.what.beat, a.is_silent} <
           std::tuple{b.what.address, a.what.started, a.what.beat, b.is_silent};
  };
  std::ranges::sort(all, later_first);
  const auto twice = std::ranges::unique(all, {}, [](const listed_member& x) { return x.what.address; });
  all.erase(twice.begin(), twice.end());
  return all;
}

} // namespace troupe::actors
