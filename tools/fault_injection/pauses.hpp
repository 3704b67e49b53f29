#pragma once

#include <chrono>
#include <filesystem>
#include <vector>

namespace troupe::chaos {

struct time_span {
  std::chrono::system_clock::time_point begin;
  std::chrono::system_clock::time_point end;
};

/// The longest pause of each generation in seconds, from a run's events.jsonl, of the generations without a pause that
/// one of these time spans overlaps. Lines that are not complete are ignored.
[[nodiscard]] std::vector<double> pauses_outside(const std::filesystem::path& events,
                                                 const std::vector<time_span>& spans);

} // namespace troupe::chaos
