#include "pauses.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace troupe::chaos {

namespace {

using clock = std::chrono::system_clock;

/// "2026-11-24T15:31:25.037Z".
std::optional<clock::time_point> parse_time(const std::string& text) {
  auto parts = std::tm{};
  const auto* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr || *rest != '.')
    return std::nullopt;
  const auto fraction = std::chrono::duration<double>{std::strtod(rest, nullptr)};
  return clock::from_time_t(::timegm(&parts)) + std::chrono::duration_cast<clock::duration>(fraction);
}

} // namespace

std::vector<double> pauses_outside(const std::filesystem::path& events, const std::vector<time_span>& spans) {
  // Each process of the run counts its generations from 1.
  using numbered = std::pair<std::uint64_t, std::uint64_t>;
  std::map<numbered, double> longest;
  std::set<numbered> excluded;
  std::uint64_t starts = 0;
  auto in = std::ifstream{events};
  for (std::string line; std::getline(in, line);) {
    const auto event = nlohmann::json::parse(line, nullptr, false);
    if (!event.is_object())
      continue;
    starts += event.value("event", "") == "started" ? 1 : 0;
    if (event.value("event", "") != "pause")
      continue;
    const auto end = parse_time(event.value("time", ""));
    if (!end)
      continue;
    const auto generation = numbered{starts, event.value("generation", std::uint64_t{0})};
    const auto seconds = event.value("seconds", 0.0);
    const auto begin = *end - std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>{seconds});
    if (std::ranges::any_of(spans, [&](const time_span& x) { return x.begin < *end && begin < x.end; }))
      excluded.insert(generation);
    longest[generation] = std::max(longest[generation], seconds);
  }
  std::vector<double> result;
  for (const auto& [generation, seconds] : longest)
    if (!excluded.contains(generation))
      result.push_back(seconds);
  return result;
}

} // namespace troupe::chaos
