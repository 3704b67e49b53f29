#include <troupe/actors/decisions/hang.hpp>

#include <troupe/messages/node.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

using clock = hang_watch::clock;

/// Beats come several times a second: during a longer gap the rank was not watched.
constexpr auto longest_gap = std::chrono::seconds{2};

std::string in_seconds(clock::duration x) {
  return fmt::format("{} s", std::chrono::floor<std::chrono::seconds>(x).count());
}

/// "rank 2", or "ranks 0, 1 and 3".
std::string name_ranks(std::vector<std::uint32_t> ranks) {
  std::ranges::sort(ranks);
  auto result = std::string{ranks.size() == 1 ? "rank " : "ranks "};
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (i > 0)
      result += i + 1 == ranks.size() ? " and " : ", ";
    result += fmt::to_string(ranks[i]);
  }
  return result;
}

std::string_view name_place(activity_kind x) {
  switch (x) {
  case activity_kind::user_code:
    return "in user code";
  case activity_kind::collective:
    return "in a collective operation";
  case activity_kind::checkpoint:
    return "at a checkpoint";
  case activity_kind::control:
    return "waiting for the driver";
  }
  return "in an unknown place";
}

} // namespace

void hang_watch::observe(activity_observation beat, clock::time_point now) {
  auto [i, is_new] = ranks_.try_emplace(beat.worker);
  auto& x = i->second;
  const auto is_stalled = !is_new && x.last.progress == beat.progress && x.last.activity == beat.activity;
  if (is_stalled)
    x.stalled_for += std::clamp<clock::duration>(now - x.heard, clock::duration::zero(), longest_gap);
  else
    x = rank_state{.last = {}, .heard = now, .stalled_for = {}, .report_at = settings_.report_after, .replaced = false};
  x.heard = std::max(x.heard, now);
  x.last = std::move(beat);
}

void hang_watch::clear() {
  ranks_.clear();
  report_all_at_ = {};
  regroup_asked_ = false;
}

std::vector<hang_finding> hang_watch::check() {
  std::vector<hang_finding> result;
  for (auto& [worker, x] : ranks_)
    if (auto found = check_one(x))
      result.push_back(std::move(*found));
  if (auto found = check_all())
    result.push_back(std::move(*found));
  return result;
}

std::optional<hang_finding> hang_watch::check_one(rank_state& x) const {
  if (x.last.activity != activity_kind::user_code)
    return std::nullopt;
  auto replace = settings_.replace_after.count() > 0 && x.stalled_for >= settings_.replace_after && !x.replaced;
  if (!replace && x.stalled_for < x.report_at)
    return std::nullopt;
  x.report_at = 2 * x.stalled_for;
  x.replaced |= replace;
  using action = hang_finding::action;
  return hang_finding{replace ? action::replace : action::report, x.last.worker, describe(x, replace)};
}

std::optional<hang_finding> hang_watch::check_all() {
  auto stalled_for = clock::duration::max();
  for (const auto& [worker, x] : ranks_)
    stalled_for =
        std::min(stalled_for, x.last.activity == activity_kind::user_code ? clock::duration::zero() : x.stalled_for);
  if (ranks_.empty() || stalled_for < std::min<clock::duration>(settings_.report_after, regroup_after())) {
    report_all_at_ = settings_.report_after;
    regroup_asked_ = false;
    return std::nullopt;
  }
  auto anyone_in = [this](activity_kind kind) {
    return std::ranges::any_of(ranks_, [kind](const auto& x) { return x.second.last.activity == kind; });
  };
  auto regroup = stalled_for >= regroup_after() && !regroup_asked_ && anyone_in(activity_kind::collective) &&
                 !anyone_in(activity_kind::checkpoint);
  if (!regroup && stalled_for < report_all_at_)
    return std::nullopt;
  report_all_at_ = 2 * stalled_for;
  regroup_asked_ = regroup_asked_ || regroup;
  using action = hang_finding::action;
  return hang_finding{regroup ? action::regroup : action::report, std::nullopt, describe_all(stalled_for)};
}

clock::duration hang_watch::regroup_after() const {
  return settings_.regroup_after.count() > 0 ? clock::duration{settings_.regroup_after} : clock::duration::max();
}

std::string hang_watch::describe(const rank_state& culprit, bool replaced) const {
  const auto& last = culprit.last;
  auto result = fmt::format("worker {} (rank {}) has made no progress in user code for {}", last.worker, last.rank,
                            in_seconds(culprit.stalled_for));
  if (!last.place.empty())
    result += ", " + last.place;
  std::vector<std::uint32_t> waiting;
  for (const auto& [worker, x] : ranks_)
    // A rank that has moved since the beat before does not wait for long.
    if (x.last.activity != activity_kind::user_code && x.stalled_for.count() > 0)
      waiting.push_back(x.last.rank.value);
  if (!waiting.empty())
    result += fmt::format("; {} {} for it", name_ranks(waiting), waiting.size() == 1 ? "waits" : "wait");
  if (replaced)
    return result + "; it is replaced";
  if (settings_.replace_after.count() > 0 && !culprit.replaced)
    result +=
        fmt::format("; it is replaced after {}, unless it calls heartbeat()", in_seconds(settings_.replace_after));
  return result;
}

std::string hang_watch::describe_all(clock::duration stalled_for) const {
  auto result = "no rank has made progress for " + in_seconds(stalled_for);
  auto separator = ": ";
  for (auto kind : {activity_kind::collective, activity_kind::checkpoint, activity_kind::control}) {
    std::vector<std::uint32_t> here;
    for (const auto& [worker, x] : ranks_)
      if (x.last.activity == kind)
        here.push_back(x.last.rank.value);
    if (here.empty())
      continue;
    result += fmt::format("{}{} {} {}", std::exchange(separator, "; "), name_ranks(here),
                          here.size() == 1 ? "is" : "are", name_place(kind));
  }
  return result + "; none is in user code, so none is to blame";
}

} // namespace troupe::actors
