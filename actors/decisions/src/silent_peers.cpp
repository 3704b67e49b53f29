#include <troupe/actors/decisions/silent_peers.hpp>

#include <fmt/format.h>

#include <utility>

namespace troupe::actors {

using namespace std::chrono_literals;

std::optional<run_time> silent_peers::on_node_answers(std::uint32_t node, run_time now) {
  const auto found = nodes_.extract(node);
  if (found.empty())
    return std::nullopt;
  last_answer_ = now;
  return found.mapped().since;
}

void silent_peers::forget_node(std::uint32_t node) {
  nodes_.erase(node);
  std::erase_if(workers_, [node](const auto& x) { return x.second.node == node; });
}

silent_peers::change silent_peers::set_workers(std::uint32_t node, const std::vector<silent_worker>& silent,
                                               const worker_table& workers, run_time now) {
  change result;
  std::set<worker_id> ids;
  for (const auto& [id, why, kind] : silent) {
    ids.insert(id);
    const auto* who = workers.find(id);
    if (who == nullptr || who->is<standing::ended>() || given_up_.contains(id))
      continue;
    const auto [known, is_new] = workers_.try_emplace(id, silence{now, {}, node, kind});
    if (!is_new && known->second.kind == kind)
      continue;
    // The kind has changed, for example because a debugger has detached: the time limit starts again.
    known->second = {now, fmt::format("{} is silent: {}", name_of(who->place), why), node, kind};
    result.silent.push_back(id);
  }
  std::erase_if(workers_, [&](const auto& x) {
    const auto& [id, before] = x;
    const auto answers = before.node == node && !ids.contains(id);
    if (answers)
      result.answered.emplace(id, before.since);
    return answers;
  });
  if (!result.answered.empty())
    last_answer_ = now;
  return result;
}

void silent_peers::forget_worker(worker_id worker) {
  workers_.erase(worker);
  given_up_.erase(worker);
}

silent_peers::given_up silent_peers::take_due(const worker_table& workers, step_id began_at, bool has_results,
                                              run_time now) {
  const auto can_go_on = [&](const worker_record& x) {
    return x.surely_has_state(began_at) && !nodes_.contains(x.place.node) && !workers_.contains(x.place.worker) &&
           !given_up_.contains(x.place.worker);
  };
  const auto may_answer = last_answer_ && now - *last_answer_ < heartbeat_timeout_;
  const auto limit = has_results || (workers.any(can_go_on) && !may_answer) ? 0ms : unreachable_after_;
  const auto is_due = [&](const silence& x) { return now - x.since >= limit; };
  given_up result;
  for (const auto& [node, x] : nodes_)
    if (is_due(x))
      result.nodes.emplace(node, x.why);
  for (const auto& [worker, x] : workers_) {
    const auto* who = workers.find(worker);
    if (!is_held(x) && (who == nullptr || !who->is_active() || is_due(x)))
      result.workers.emplace(worker, x.why);
  }
  for (const auto& [node, why] : result.nodes)
    nodes_.erase(node);
  for (const auto& [worker, why] : result.workers) {
    workers_.erase(worker);
    given_up_.insert(worker);
  }
  return result;
}

silent_peers::given_up silent_peers::take_workers() {
  given_up result;
  for (auto& [worker, x] : std::exchange(workers_, {})) {
    given_up_.insert(worker);
    result.workers.emplace(worker, std::move(x.why));
  }
  return result;
}

silent_peers::given_up silent_peers::take_all() {
  auto result = take_workers();
  for (auto& [node, x] : std::exchange(nodes_, {}))
    result.nodes.emplace(node, std::move(x.why));
  return result;
}

std::string silent_peers::describe_wait(const std::string& why) const {
  return fmt::format("{}. No other worker has the run's state, so the run waits for it, and starts again from the "
                     "latest checkpoint if it does not answer within {} s (failure.unreachable_after)",
                     why, std::chrono::duration_cast<std::chrono::seconds>(unreachable_after_).count());
}

std::string silent_peers::describe_silence(const worker_table& workers, run_time now,
                                           const std::function<std::string(std::uint32_t)>& name_of_node) const {
  std::string result;
  const auto add = [&](const std::string& name, run_time since) {
    result += fmt::format("{}{}, silent for {} s", result.empty() ? "" : "; ", name,
                          std::chrono::duration_cast<std::chrono::seconds>(now - since).count());
  };
  for (const auto& [node, x] : nodes_)
    add("node " + name_of_node(node), x.since);
  for (const auto& [worker, x] : workers_)
    if (const auto* who = workers.find(worker))
      add(name_of(who->place), x.since);
  return result;
}

std::string silent_peers::describe_wait(worker_id worker) const {
  const auto& x = workers_.at(worker);
  if (!is_held(x))
    return describe_wait(x.why);
  return x.why + ". The others wait until the debugger lets it continue (failure.debugger)";
}

} // namespace troupe::actors
