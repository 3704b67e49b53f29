#include "run/run_json.hpp"

#include "checkpoint/commands.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>

namespace troupe::tool {

expected<nlohmann::json> read_run_json(const std::filesystem::path& run) {
  auto file = std::ifstream{run / "run.json"};
  auto content = nlohmann::json::parse(file, nullptr, false);
  if (!content.is_object())
    return fail(errc::not_found, run.string() + " has no run.json that can be read: name the directory of a run, such "
                                                "as runs/latest");
  return content;
}

std::string lost_parts(const ledger_comparison& what) {
  return what.incomplete == 0
             ? std::string{}
             : fmt::format("; of {} of them a worker was lost before it had told its part", what.incomplete);
}

int report_trouble(const char* command, const expected<int>& outcome) {
  if (outcome)
    return *outcome;
  fmt::print(stderr, "troupe {}: {}\n", command, outcome.error().message);
  return exit_trouble;
}

} // namespace troupe::tool
