#include "run/summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace troupe::tool {

namespace {

bool is_own_name(std::string_view name) {
  return name == "step" || name == "rank" || name == "seconds" || name == "time";
}

void add_report(run_summary& to, const nlohmann::json& row) {
  const auto step = row.value("step", std::uint64_t{0});
  to.last_step = std::max(to.last_step, step);
  to.seconds = std::max(to.seconds, row.value("seconds", 0.0));
  if (row.value("rank", 0u) != 0)
    return;
  for (const auto& [name, value] : row.items())
    if (!is_own_name(name) && (value.is_number() || value.is_null()))
      // JSON has no number for what is not finite.
      to.metrics[name].push_back(
          {step, value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>()});
}

void add_times(run_summary& to, const nlohmann::json& row) {
  auto& rank = to.times[row.value("rank", std::uint64_t{0})];
  rank.steps += row.value("steps", std::uint64_t{0});
  rank.compute += row.value("compute", 0.0);
  rank.wait += row.value("wait", 0.0);
  rank.barrier += row.value("barrier", 0.0);
}

void add_account(run_summary::account& to, const nlohmann::json& goodput) {
  ++to.processes;
  to.seconds += goodput.value("seconds", 0.0);
  to.productive += goodput.value("productive", 0.0);
  to.steps_redone += goodput.value("steps_redone", std::uint64_t{0});
  if (const auto lost = goodput.find("lost"); lost != goodput.end() && lost->is_object())
    for (const auto& [cause, seconds] : lost->items())
      if (seconds.is_number())
        to.lost[cause] += seconds.get<double>();
}

} // namespace

double run_summary::goodput() const noexcept {
  if (told.seconds > 0)
    return std::clamp(told.productive / told.seconds, 0.0, 1.0);
  return seconds > 0 ? std::clamp(1 - (seconds_paused + seconds_redone) / seconds, 0.0, 1.0) : 1;
}

run_summary summarize(const run_rows& rows) {
  run_summary result;
  for (const auto& row : rows.metrics)
    add_report(result, row);
  for (const auto& row : rows.times)
    add_times(result, row);
  // Ranks pause together, so the longest counts. Every process of the run counts its generations from 1.
  std::map<std::pair<std::uint64_t, std::uint64_t>, double> longest;
  std::uint64_t starts = 0;
  // The last of each process.
  std::map<std::uint64_t, nlohmann::json> accounts;
  for (const auto& event : rows.events) {
    const auto kind = event.value("event", std::string{});
    if (const auto goodput = event.find("goodput"); goodput != event.end() && goodput->is_object())
      accounts[starts] = *goodput;
    if (kind == "started") {
      ++starts;
    } else if (kind == "failure" && event.value("consequence", false)) {
      ++result.consequences;
    } else if (kind == "failure") {
      result.failures.push_back(event);
    } else if (kind == "pause") {
      const auto seconds = event.value("seconds", 0.0);
      auto& rank = result.paused[event.value("rank", std::uint64_t{0})];
      ++rank.count;
      rank.seconds += seconds;
      auto& generation = longest[{starts, event.value("generation", std::uint64_t{0})}];
      generation = std::max(generation, seconds);
    } else if (kind == "generation") {
      result.steps_redone += event.value("steps_redone", std::uint64_t{0});
    }
  }
  for (const auto& [start, goodput] : accounts)
    add_account(result.told, goodput);
  for (const auto& [generation, seconds] : longest)
    result.seconds_paused += seconds;
  if (result.last_step > 0)
    result.seconds_redone = std::max(0.0, result.seconds - result.seconds_paused) *
                            static_cast<double>(result.steps_redone) /
                            static_cast<double>(result.last_step + result.steps_redone);
  return result;
}

std::string describe_slowest(const std::map<std::uint64_t, run_summary::step_times>& times) {
  constexpr auto noticeable = 1.1;
  std::vector<std::pair<double, std::uint64_t>> by_compute;
  for (const auto& [rank, each] : times)
    if (each.steps > 0)
      by_compute.emplace_back(each.compute / static_cast<double>(each.steps), rank);
  if (by_compute.size() < 2)
    return {};
  std::ranges::sort(by_compute);
  const auto [most, rank] = by_compute.back();
  const auto median = by_compute[(by_compute.size() - 1) / 2].first;
  if (most < noticeable * median)
    return {};
  return fmt::format("rank {} computes {:.2f} times as long as the median rank: the others wait for it", rank,
                     most / median);
}

std::string describe_event(const nlohmann::json& event) {
  const auto first_line = [](const std::string& value) {
    const auto lines = std::ranges::count(value, '\n');
    return lines == 0 ? value : fmt::format("{} (+ {} lines: --json)", value.substr(0, value.find('\n')), lines);
  };
  auto text = std::string{};
  for (const auto& [name, value] : event.items())
    if (name != "time" && name != "event" && name != "run" && name != "workers" && name != "goodput")
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name,
                          value.is_string() ? first_line(value.get<std::string>()) : value.dump());
  if (const auto goodput = event.find("goodput"); goodput != event.end() && goodput->is_object())
    text += fmt::format("{}goodput {:.1f} %", text.empty() ? "" : ", ", 100 * goodput->value("ratio", 0.0));
  return fmt::format("{}  {:<18} {}", event.value("time", std::string{}), event.value("event", std::string{}), text);
}

std::string sparkline(std::span<const run_summary::point> points, std::size_t width) {
  static constexpr std::array<std::string_view, 8> levels{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const auto count = std::min(points.size(), width);
  std::vector<double> means;
  for (std::size_t i = 0; i < count; ++i) {
    const auto part =
        points.subspan(points.size() * i / count, points.size() * (i + 1) / count - points.size() * i / count);
    auto sum = 0.0;
    for (const auto& each : part)
      sum += each.value;
    means.push_back(sum / static_cast<double>(part.size()));
  }
  auto least = std::numeric_limits<double>::infinity();
  auto most = -least;
  for (auto mean : means)
    if (std::isfinite(mean)) {
      least = std::min(least, mean);
      most = std::max(most, mean);
    }
  auto result = std::string{};
  for (auto mean : means) {
    if (!std::isfinite(mean)) {
      result += "!";
      continue;
    }
    const auto height = most > least ? (mean - least) / (most - least) : 0.0;
    result += levels[static_cast<std::size_t>(std::clamp(height * 8, 0.0, 7.0))];
  }
  return result;
}

} // namespace troupe::tool
