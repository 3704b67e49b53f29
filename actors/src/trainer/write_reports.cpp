#include "trainer/write_reports.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <utility>

namespace troupe::actors {

namespace {

const char* effect_on(write_reports::kind what) {
  switch (what) {
  case write_reports::kind::metrics:
    return "metrics and events wait for it";
  case write_reports::kind::logs:
    return "lines are missing in the workers' logs";
  case write_reports::kind::tensorboard:
    return "TensorBoard's files wait for it";
  }
  return "";
}

} // namespace

void write_reports::note(kind what, const expected<void>& outcome, std::uint64_t dropped) {
  dropped_ += dropped;
  auto& problem = problems_.at(static_cast<std::size_t>(what));
  if (!outcome && problem.empty()) {
    problem = outcome.error().message;
    tell_(severity::warning, fmt::format("{}: {}, and training goes on", problem, effect_on(what)));
  } else if (outcome && !problem.empty()) {
    tell_(severity::note, fmt::format("files can be written again ({})", std::exchange(problem, {})));
    report_dropped();
  }
}

void write_reports::report_dropped(std::uint64_t dropped) {
  if (const auto count = std::exchange(dropped_, 0) + dropped; count > 0)
    tell_(severity::warning,
          fmt::format("{} lines of metrics.jsonl, times.jsonl and ledger.jsonl are lost, because the disk did not take "
                      "them",
                      count));
}

} // namespace troupe::actors
