#include "simulation.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <doctest/doctest.h>
#include <iostream>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

// TROUPE_LONG_TESTS=<seconds> makes the undisturbed product go on for so long, from another place each time, and
// TROUPE_SEED=<number> repeats one schedule, with everything that happens in it.

using namespace troupe;
using namespace troupe::simulation;

namespace {

using schedule = troupe::simulation::simulation;

/// In the suite, and in the long form.
constexpr std::uint64_t short_form = TROUPE_SCHEDULES;
constexpr std::uint64_t long_form = 100'000;

/// A mutant that survives so many schedules is not caught.
constexpr std::uint64_t patience = 20'000;

struct finding {
  std::uint64_t seed = 0;
  std::string what;
};

struct campaign {
  std::uint64_t schedules = 0;
  std::uint64_t turns = 0;
  tally counts;
  /// The one with the lowest seed.
  std::optional<finding> found;
};

/// Simulates schedules from `first` on, in all processors: `count` of them, or more until `end`, or up to the first
/// finding.
campaign simulate(std::uint64_t first, std::uint64_t count, mutation defect,
                  std::chrono::steady_clock::time_point end = {}) {
  campaign result;
  std::mutex mutex;
  std::atomic<std::uint64_t> next{0};
  std::atomic<std::uint64_t> limit{std::numeric_limits<std::uint64_t>::max()};
  auto work = [&] {
    campaign mine;
    for (;;) {
      auto index = next++;
      // Lower ones than the first finding are simulated to their end, so that the result does not depend on the
      // processors.
      if (index >= limit || (index >= count && std::chrono::steady_clock::now() >= end))
        break;
      auto simulated = schedule{first + index, defect, mine.counts, nullptr};
      auto wrong = simulated.simulate();
      ++mine.schedules;
      mine.turns += simulated.turns();
      if (!wrong)
        continue;
      auto lock = std::lock_guard{mutex};
      if (index < limit) {
        limit = index;
        result.found = finding{first + index, *wrong};
      }
    }
    auto lock = std::lock_guard{mutex};
    result.schedules += mine.schedules;
    result.turns += mine.turns;
    result.counts.add(mine.counts);
  };
  std::vector<std::thread> others;
  for (auto i = 1u; i < std::clamp(std::thread::hardware_concurrency(), 1u, 8u); ++i)
    others.emplace_back(work);
  work();
  for (auto& each : others)
    each.join();
  return result;
}

/// What happens in one schedule, line by line.
std::string trace_of(std::uint64_t seed, mutation defect = mutation::none) {
  tally counts;
  std::vector<std::string> lines;
  std::ignore = schedule{seed, defect, counts, &lines}.simulate();
  std::string text;
  for (const auto& line : lines)
    text += line + "\n";
  return text;
}

} // namespace

TEST_CASE("whatever dies, freezes, comes back and goes, every run ends with the undisturbed state") {
  if (const auto* given = std::getenv("TROUPE_SEED")) {
    const auto seed = std::strtoull(given, nullptr, 10);
    std::cout << trace_of(seed);
    tally counts;
    const auto wrong = schedule{seed, mutation::none, counts, nullptr}.simulate();
    INFO(wrong.value_or(""));
    CHECK_FALSE(wrong.has_value());
    return;
  }
  const auto* seconds = std::getenv("TROUPE_LONG_TESTS");
  const auto first = seconds != nullptr ? std::uint64_t{std::random_device{}()} << 20 : 1;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds{seconds != nullptr ? std::atoi(seconds) : 0};
  std::cout << "seeds of the simulation: from " << first << std::endl;
  const auto wanted = seconds != nullptr ? long_form : short_form;
  const auto done = simulate(first, wanted, mutation::none, end);
  std::cout << done.schedules << " schedules, " << done.turns << " turns\n";
  for (std::size_t i = 0; i < tally::size; ++i)
    std::cout << "  " << to_string(static_cast<branch>(i)) << ": " << done.counts.of(static_cast<branch>(i)) << "\n";
  if (done.found)
    std::cout << trace_of(done.found->seed);
  REQUIRE_MESSAGE(!done.found, "seed " << done.found->seed << ": " << done.found->what);
  CHECK(done.schedules >= wanted);
  CHECK(done.counts.of(branch::fault) >= done.schedules);
  for (std::size_t i = 0; i < tally::size; ++i) {
    INFO(to_string(static_cast<branch>(i)));
    CHECK(done.counts.of(static_cast<branch>(i)) > 0);
  }
}

TEST_CASE("each thing that the shell around the decisions could do wrong is found") {
  if (std::getenv("TROUPE_SEED") != nullptr)
    return;
  for (auto defect : mutations) {
    const auto done = simulate(1, patience, defect);
    INFO(to_string(defect));
    CHECK(done.found.has_value());
    if (done.found)
      std::cout << "found: " << to_string(defect) << "\n  by schedule " << done.found->seed << ": " << done.found->what
                << "\n";
  }
}

TEST_CASE("a schedule is the same each time it is simulated") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed)
    CHECK(trace_of(seed) == trace_of(seed));
}
