#include <troupe/actors/decisions/broken_links.hpp>

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

using namespace std::chrono_literals;

/// How long the first reconnect may take before the broken link is reported.
constexpr auto patience = 300ms;

/// Long, because a firewall that resets connections also refuses new ones, and a caf-node may be restarted.
constexpr auto refused_when_dead = 5s;

} // namespace

void broken_links::on_dialled(std::uint32_t node, dial_result result, run_time now) {
  auto i = links_.find(node);
  if (i == links_.end())
    return;
  auto& dialled = i->second.dialled;
  if (result == dial_result::failed)
    dialled = unanswered{};
  else if (!std::holds_alternative<refused>(dialled))
    dialled = refused{now};
}

std::map<std::uint32_t, std::string> broken_links::take_unreachable(run_time now) {
  const auto is_undecided = [&](const auto& x) {
    return std::holds_alternative<not_dialled>(x.second.dialled) && now - x.second.since < patience;
  };
  std::map<std::uint32_t, std::string> result;
  if (std::ranges::any_of(links_, is_undecided))
    return result;
  for (auto& [node, each] : links_)
    if (std::exchange(each.to_run, report::made) == report::due)
      result[node] = each.why;
  return result;
}

std::vector<std::uint32_t> broken_links::dead(run_time now) const {
  std::vector<std::uint32_t> result;
  for (const auto& [node, each] : links_)
    if (const auto* since = std::get_if<refused>(&each.dialled);
        since != nullptr && now - since->since >= refused_when_dead)
      result.push_back(node);
  return result;
}

} // namespace troupe::actors
