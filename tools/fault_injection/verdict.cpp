#include "verdict.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace troupe::chaos {

namespace {

using nlohmann::json;

/// The least share of losses that must interrupt a step. With fewer, the faults hit mostly idle time and test little.
constexpr double least_share_inside = 0.8;

/// With fewer losses that share is not significant: one loss in ten falls between two steps by chance.
constexpr int least_losses = 20;

std::string text_of(const json& object, const char* key) {
  auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string{};
}

std::optional<std::uint64_t> number_of(const json& object, const char* key) {
  auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer() || *found < 0)
    return std::nullopt;
  return found->get<std::uint64_t>();
}

const json& list_of(const json& object, const char* key) {
  static const auto none = json::array();
  auto found = object.find(key);
  return found != object.end() && found->is_array() ? *found : none;
}

std::string joined(const std::vector<std::string>& texts) {
  return fmt::format("{}", fmt::join(texts, "; "));
}

std::string count(std::uint64_t number, const std::string& what) {
  return fmt::format("{} {}{}", number, what, number == 1 ? "" : "s");
}

finding made(std::string question, bool yes, std::string detail) {
  return {std::move(question), yes ? answer::yes : answer::no, std::move(detail)};
}

finding same_bits(const evidence& facts) {
  const auto* question = "the disturbed run ends with the bits of the undisturbed one";
  auto disturbed = text_of(facts.result, "state_sha256");
  auto undisturbed = text_of(facts.undisturbed, "state_sha256");
  auto steps = number_of(facts.result, "steps").value_or(0);
  auto same = disturbed.size() == 64 && disturbed == undisturbed && number_of(facts.undisturbed, "steps") == steps;
  return made(question, same,
              same ? fmt::format("{} after step {}", disturbed.substr(0, 16), steps)
                   : fmt::format("disturbed '{}', undisturbed '{}'", disturbed, undisturbed));
}

finding finished(const evidence& facts) {
  auto status = text_of(facts.result, "status");
  auto error = facts.result.is_object() && facts.result.value("error", json{}).is_object()
                   ? text_of(facts.result["error"], "message")
                   : std::string{};
  return made("the run finished", status == "completed" || status == "stopped",
              status.empty()  ? "it left no result"
              : error.empty() ? status
                              : fmt::format("{}: {}", status, error));
}

finding all_injected(const evidence& facts) {
  auto injected = facts.faults.size();
  return made("all planned faults were injected", injected > 0 && injected >= facts.planned_faults,
              facts.planned_faults > 0 ? fmt::format("{} of {}", injected, count(facts.planned_faults, "fault"))
                                       : count(injected, "fault"));
}

/// The pid of a failed worker, from its entry or else from the list of workers. 0 if unknown.
std::uint32_t pid_of(const json& failure, const json& workers) {
  auto pid = number_of(failure, "pid").value_or(0);
  if (pid == 0)
    for (const auto& worker : workers)
      if (number_of(worker, "worker") == number_of(failure, "worker"))
        pid = number_of(worker, "pid").value_or(0);
  return static_cast<std::uint32_t>(pid);
}

finding failures_are_injected(const evidence& facts) {
  const auto* question = "its failures are exactly the injected ones";
  if (!facts.result.is_object() || !facts.result.contains("failures"))
    return {question, answer::unknown, "result.json has no 'failures'"};
  // The system may reuse the pid of a dead process for a new one, which may then be hit, too.
  std::map<std::uint32_t, int> killed;
  std::map<std::uint32_t, int> hit;
  for (const auto& fault : facts.faults) {
    for (auto pid : fault.killed) {
      ++killed[pid];
      ++hit[pid];
    }
    for (auto pid : fault.endangered)
      if (std::ranges::find(fault.killed, pid) == fault.killed.end())
        ++hit[pid];
  }
  const auto node_faults =
      std::ranges::any_of(facts.faults, [](const injected_fault& each) { return concerns_node(each.kind); });
  const auto& workers = list_of(facts.result, "workers");
  std::vector<std::string> problems;
  std::map<std::uint32_t, int> reported;
  for (const auto& failure : list_of(facts.result, "failures")) {
    auto pid = pid_of(failure, workers);
    // The worker was lost with its node before it had reported its pid.
    if (pid == 0 && node_faults)
      continue;
    auto what = fmt::format("worker {} (process {}): {}: {}", number_of(failure, "worker").value_or(0), pid,
                            text_of(failure, "code"), text_of(failure, "message"));
    if (!hit.contains(pid))
      problems.push_back(fmt::format("not injected: {}", what));
    else if (++reported[pid] > hit[pid])
      problems.push_back(fmt::format("reported more often than injected: {}", what));
  }
  for (auto [pid, times] : killed)
    if (reported[pid] < times)
      problems.push_back(fmt::format("killed but not reported: process {}", pid));
  return made(question, problems.empty(),
              problems.empty() ? count(list_of(facts.result, "failures").size(), "failure") : joined(problems));
}

finding no_needless_restart(const evidence& facts) {
  const auto* question = "no restart from a checkpoint while a survivor lived";
  auto restarts = number_of(facts.result, "restarts");
  if (!restarts)
    return {question, answer::unknown, "result.json has no 'restarts'"};
  auto justified = static_cast<std::uint64_t>(std::ranges::count(facts.faults, true, &injected_fault::left_none));
  return made(question, *restarts <= justified,
              fmt::format("{}, {} without a survivor", count(*restarts, "restart"), justified));
}

finding one_step_redone(const evidence& facts) {
  const auto* question = "at most one step redone for each fault";
  const auto& generations = list_of(facts.result, "generations");
  if (std::ranges::none_of(generations, [](const json& each) { return each.contains("steps_redone"); }) &&
      !facts.result.contains("generations"))
    return {question, answer::unknown, "result.json has no 'generations'"};
  auto total = std::uint64_t{0};
  auto worst = std::uint64_t{0};
  auto attempt = std::uint64_t{1};
  for (const auto& each : generations) {
    // After a restart, the repeated steps are those since the checkpoint, which do not count here.
    auto fresh = number_of(each, "attempt").value_or(1);
    auto redone = fresh == attempt ? number_of(each, "steps_redone").value_or(0) : 0;
    attempt = fresh;
    total += redone;
    worst = std::max(worst, redone);
  }
  return made(question, worst <= 1 && total <= facts.faults.size(),
              fmt::format("{} redone in {}, at most {} at once", count(total, "step"),
                          count(generations.size(), "new generation"), worst));
}

finding inside_a_step(const evidence& facts) {
  const auto* question = "at least 80 % of the losses fell inside a step";
  std::map<std::uint64_t, bool> interrupted;
  for (const auto& each : list_of(facts.result, "generations"))
    if (each.contains("interrupted_step") && each["interrupted_step"].is_boolean())
      interrupted[number_of(each, "generation").value_or(0)] = each["interrupted_step"].get<bool>();
  // The generation after a loss records whether the one before was inside a step. Several workers may be lost at once.
  std::map<std::uint64_t, bool> losses;
  for (const auto& failure : list_of(facts.result, "failures"))
    if (auto next = interrupted.upper_bound(number_of(failure, "generation").value_or(~std::uint64_t{0}));
        next != interrupted.end())
      losses.insert(*next);
  if (facts.result.is_object() && facts.result.contains("failures") && facts.result["failures"].empty())
    return {question, answer::not_applicable, "no worker was lost"};
  if (losses.empty())
    return {question, answer::unknown, "result.json does not record for any loss whether a step was under way"};
  auto all = static_cast<int>(losses.size());
  auto inside = static_cast<int>(std::ranges::count_if(losses, [](const auto& each) { return each.second; }));
  auto enough = all >= least_losses;
  return made(question, !enough || inside >= least_share_inside * all,
              fmt::format("{} of {}{}", inside, all, enough ? "" : ", too few to judge"));
}

finding no_more_than_requested(const evidence& facts) {
  const auto* question = "never more workers than requested";
  const auto& generations = list_of(facts.result, "generations");
  if (facts.workers == 0 || !facts.result.is_object() || !facts.result.contains("generations"))
    return {question, answer::unknown, "result.json has no 'generations'"};
  auto most = std::uint64_t{0};
  for (const auto& each : generations)
    most = std::max(most, number_of(each, "workers").value_or(0));
  return made(question, most <= facts.workers,
              fmt::format("at most {} after a change, {} requested", most, facts.workers));
}

finding exactly_once(const evidence& facts) {
  const auto* question = "the ledger has every shard of every step exactly once";
  auto shards = number_of(facts.run, "shards");
  auto steps = number_of(facts.result, "steps");
  if (facts.ledger.empty() || !shards || !steps)
    return {question, answer::unknown, "there is no ledger.jsonl, or no run.json with the number of shards"};
  auto checked = account(facts.ledger, static_cast<std::uint32_t>(*shards), *steps, victims_of(facts.faults));
  return made(question, checked.problems.empty(),
              checked.problems.empty()
                  ? fmt::format("{} pairs of step and shard; {} lines were lost with their process", checked.pairs,
                                checked.died_with_writer)
                  : joined(checked.problems));
}

finding whole_epochs(const evidence& facts) {
  const auto* question = "every epoch has every sample exactly once";
  auto shards = number_of(facts.run, "shards");
  auto seed = number_of(facts.run, "seed");
  auto steps = number_of(facts.result, "steps");
  auto config = facts.run.is_object() ? facts.run.value("config", json::object()) : json::object();
  auto batch = number_of(config, "batch").value_or(0);
  if (!facts.samples)
    return {question, answer::not_applicable, "the number of samples is known only for charlm"};
  if (!shards || !seed || !steps || *facts.samples == 0 || batch == 0)
    return {question, answer::unknown, "run.json or result.json lacks seed, shards, steps or batch"};
  auto order = data_order{*facts.samples, batch, static_cast<std::uint32_t>(*shards), *seed};
  auto checked = account_samples(order, *facts.samples, static_cast<std::uint32_t>(*shards), *steps, facts.ledger);
  return made(question, checked.problems.empty(),
              checked.problems.empty()
                  ? fmt::format("{} samples, {} and a part", *facts.samples, count(checked.whole_epochs, "whole epoch"))
                  : joined(checked.problems));
}

} // namespace

std::vector<finding> judge(const evidence& facts) {
  return {finished(facts),
          same_bits(facts),
          all_injected(facts),
          failures_are_injected(facts),
          no_needless_restart(facts),
          one_step_redone(facts),
          inside_a_step(facts),
          no_more_than_requested(facts),
          exactly_once(facts),
          whole_epochs(facts)};
}

victim_records victims_of(const std::vector<injected_fault>& faults) {
  victim_records result;
  for (const auto& fault : faults)
    for (const auto* pids : {&fault.killed, &fault.endangered})
      for (auto pid : *pids)
        result.emplace(pid, victim_record{fault.step, fault.lines_waited});
  return result;
}

double percentile(std::vector<double> values, double share) {
  if (values.empty())
    return 0;
  std::ranges::sort(values);
  auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  return values[std::clamp<std::size_t>(rank, 1, values.size()) - 1];
}

} // namespace troupe::chaos
