#include "run/commands.hpp"
#include "run/run_json.hpp"
#include "run/summary.hpp"

#include <troupe/runtime/found_run.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <map>

namespace troupe::tool {

namespace {

using runtime::find_run;

constexpr std::size_t curve_width = 60;

/// A run that goes on may have torn the last line.
std::vector<nlohmann::json> read_rows(const std::filesystem::path& path) {
  std::vector<nlohmann::json> result;
  auto file = std::ifstream{path};
  for (std::string line; std::getline(file, line);)
    if (auto row = nlohmann::json::parse(line, nullptr, false); row.is_object())
      result.push_back(std::move(row));
  return result;
}

nlohmann::json to_json(const run_summary& x) {
  auto metrics = nlohmann::json::object();
  for (const auto& [name, points] : x.metrics)
    for (const auto& each : points)
      metrics[name].push_back({each.step, each.value});
  auto paused = nlohmann::json::array();
  for (const auto& [rank, pauses] : x.paused)
    paused.push_back({{"rank", rank}, {"pauses", pauses.count}, {"seconds", pauses.seconds}});
  auto times = nlohmann::json::array();
  for (const auto& [rank, each] : x.times)
    times.push_back({{"rank", rank},
                     {"steps", each.steps},
                     {"compute", each.compute},
                     {"wait", each.wait},
                     {"barrier", each.barrier}});
  return {{"failures", x.failures},
          {"consequences", x.consequences},
          {"metrics", std::move(metrics)},
          {"last_step", x.last_step},
          {"paused", std::move(paused)},
          {"times", std::move(times)},
          {"goodput",
           {{"part", x.goodput()},
            {"seconds", x.seconds},
            {"seconds_paused", x.seconds_paused},
            {"seconds_redone", x.seconds_redone},
            {"steps_redone", x.steps_redone},
            {"processes", x.told.processes},
            {"lost", x.told.lost}}}};
}

/// What a cause of lost time is, in `lost_time`'s words where there is none here.
std::string describe_cause(const std::string& cause) {
  static const std::map<std::string, std::string> texts{
      {"start_up", "start"},          {"capacity", "waiting for nodes"},
      {"regroup", "forming groups"},  {"restart", "restarting"},
      {"redone", "steps done again"}, {"paused", "paused by a user"},
      {"checkpoint", "checkpoints"},  {"ending", "ending"},
      {"other", "between steps"}};
  const auto found = texts.find(cause);
  return found == texts.end() ? cause : found->second;
}

std::string describe_range(const std::vector<run_summary::point>& points) {
  std::vector<run_summary::point> finite;
  std::ranges::copy_if(points, std::back_inserter(finite), [](const auto& x) { return std::isfinite(x.value); });
  const auto others = points.size() - finite.size();
  auto result = others == 0 ? std::string{} : fmt::format("; not finite in {} of {} steps", others, points.size());
  if (finite.empty())
    return result.substr(2);
  const auto [least, most] = std::ranges::minmax_element(finite, {}, &run_summary::point::value);
  return fmt::format("least {:.6g} (step {}), most {:.6g} (step {}){}", least->value, least->step, most->value,
                     most->step, result);
}

void print_times(const std::map<std::uint64_t, run_summary::step_times>& times) {
  if (times.empty())
    return;
  fmt::print("\nmilliseconds per step     compute       wait    barrier\n");
  for (const auto& [rank, each] : times) {
    const auto per_step = [steps = each.steps](double seconds) { return 1000 * seconds / static_cast<double>(steps); };
    if (each.steps > 0)
      fmt::print("  {:<20} {:>10.3f} {:>10.3f} {:>10.3f}\n", fmt::format("rank {}, {} steps", rank, each.steps),
                 per_step(each.compute), per_step(each.wait), per_step(each.barrier));
  }
  if (const auto slowest = describe_slowest(times); !slowest.empty())
    fmt::print("{}\n", slowest);
}

void print_goodput(const run_summary& x) {
  if (x.told.seconds == 0) {
    fmt::print("\ngoodput {:.1f} %: of {:.1f} s, {:.2f} s were pauses and {:.2f} s went into {} steps computed again\n",
               100 * x.goodput(), x.seconds, x.seconds_paused, x.seconds_redone, x.steps_redone);
    return;
  }
  fmt::print("\ngoodput {:.1f} %: {:.1f} s of {:.1f} s{} went into steps that count\n", 100 * x.goodput(),
             x.told.productive, x.told.seconds,
             x.told.processes > 1 ? fmt::format(" in {} processes", x.told.processes) : std::string{});
  for (const auto& [cause, seconds] : x.told.lost)
    if (seconds >= 0.005)
      fmt::print("  {:<20} {:>10.2f} s {:>6.1f} %\n", describe_cause(cause), seconds, 100 * seconds / x.told.seconds);
}

void print(const run_summary& x, const std::vector<nlohmann::json>& events) {
  if (x.failures.empty())
    fmt::print("no failures\n");
  for (const auto& each : x.failures)
    fmt::print("{}\n", describe_event(each));
  if (x.consequences > 0)
    fmt::print("and {} failures that are consequences of these\n", x.consequences);
  fmt::print("\nmetrics (rank 0)\n");
  for (const auto& [name, points] : x.metrics)
    fmt::print("  {}: {:.6g} in step {}, {:.6g} in step {}; {}\n    {}\n", name, points.front().value,
               points.front().step, points.back().value, points.back().step, describe_range(points),
               sparkline(points, curve_width));
  print_goodput(x);
  for (const auto& [rank, pauses] : x.paused)
    fmt::print("  rank {} paused {} times, {:.2f} s\n", rank, pauses.count, pauses.seconds);
  print_times(x.times);
  fmt::print("\ntimeline\n");
  for (const auto& each : events)
    fmt::print("{}\n", describe_event(each));
}

expected<int> show_or_fail(show_run_arguments given) {
  if (const auto found = find_run(given.run.string(), "runs"))
    given.run = *found;
  TROUPE_TRY(const auto run, read_run_json(given.run));
  const auto rows = run_rows{read_rows(given.run / "metrics.jsonl"), read_rows(given.run / "events.jsonl"),
                             read_rows(given.run / "times.jsonl")};
  const auto summary = summarize(rows);
  auto file = std::ifstream{given.run / "result.json"};
  const auto result = nlohmann::json::parse(file, nullptr, false);
  const auto status = result.is_object() ? result.value("status", std::string{"unknown"}) : std::string{"not ended"};
  if (given.output == output_format::json) {
    auto all = to_json(summary);
    all["name"] = run.value("name", std::string{});
    all["status"] = status;
    all["timeline"] = rows.events;
    fmt::print("{}\n", all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    return exit_good;
  }
  fmt::print("{}: {}, {} steps, {}\n\n", run.value("name", std::string{}), status, summary.last_step,
             given.run.string());
  print(summary, rows.events);
  return exit_good;
}

} // namespace

int show_run(const show_run_arguments& given) {
  return report_trouble("run show", show_or_fail(given));
}

} // namespace troupe::tool
