#include "run/control_commands.hpp"
#include "run/run_curves.hpp"
#include "run/status_text.hpp"

#include "checkpoint/text.hpp"

#include <troupe/runtime/control_client.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <utility>

namespace troupe::tool {

namespace {

using runtime::absence;
using runtime::absent_driver;
using runtime::control_client;
using runtime::list_runs;
using ordered = nlohmann::ordered_json;

std::string metrics_text(const ordered& status) {
  const auto metrics = status.value("metrics", ordered::object());
  const auto drawn = main_metric(status);
  if (drawn.empty() || !metrics[drawn].is_number())
    return "-";
  return fmt::format("{} {}{}", printable(drawn), short_number_text(metrics[drawn].get<double>()),
                     metrics.size() > 1 ? " ..." : "");
}

std::vector<std::string> row_of(const ordered& status) {
  const auto steps = status.value("steps", std::uint64_t{0});
  const auto step = status.value("step", std::uint64_t{0});
  const auto workers = status.find("workers");
  const auto since = status.value("since", std::string{});
  return {printable(status.value("name", std::string{"?"})),
          printable(status.value("state", std::string{"?"})),
          steps > 0 ? fmt::format("{}/{}", step, steps) : std::to_string(step),
          workers != status.end() ? std::to_string(workers->size()) : "-",
          since.size() > 19 ? printable(since.substr(0, 10) + " " + since.substr(11, 8)) : "-",
          metrics_text(status)};
}

} // namespace

known_status ask_or_read(const runtime::run_access& run) {
  auto found = run.find_driver();
  if (auto* driver = std::get_if<control_client>(&found)) {
    if (auto status = driver->ask(actors::status_question{}))
      return {std::move(*status), {}};
    // It may just have ended.
    found = run.find_driver();
    if (std::holds_alternative<control_client>(found))
      found = absent_driver{absence::deaf, "the run's driver does not answer"};
  }
  auto& absent = std::get<absent_driver>(found);
  auto status = run.stored_status(absent.why);
  if (absent.why != absence::ended)
    status["hint"] = absent.text;
  return {std::move(status), std::move(absent)};
}

int list_all_runs(const list_runs_arguments& given) {
  const auto runs = list_runs(given.storage);
  if (!runs)
    return complain(runs.error());
  auto rows = std::vector<std::vector<std::string>>{{"run", "state", "step", "workers", "since (UTC)", "metrics"}};
  auto document = ordered::array();
  for (const auto& run : *runs) {
    document.push_back(ask_or_read(runtime::run_access{run}).status);
    rows.push_back(row_of(document.back()));
  }
  if (given.output == output_format::json)
    print_json({{"runs", document}});
  else if (rows.size() < 2)
    fmt::print("no runs in {}\n", given.storage.string());
  else
    print_table(rows);
  return exit_good;
}

int show_status(const run_choice& given) {
  const auto run = open_run(given);
  if (!run)
    return complain(run.error());
  auto [status, absent] = ask_or_read(*run);
  const auto& files = run->directory();
  const auto slowest = absent ? std::string{} : read_slowest(files);
  if (given.output == output_format::json) {
    if (!slowest.empty())
      status["late"] = slowest;
    print_json(status);
  } else {
    for (const auto& line : describe_status(status, {read_curve(files, main_metric(status)), slowest}, 1000))
      fmt::print("{}\n", line);
    if (absent && absent->why != absence::ended)
      fmt::print("{}\n", printable(absent->text));
  }
  const auto is_bad = status.value("state", std::string{}) == "failed" || (absent && absent->why == absence::lost);
  return is_bad ? exit_found : exit_good;
}

} // namespace troupe::tool
