#include "run/control_commands.hpp"
#include "run/run_curves.hpp"
#include "run/status_text.hpp"

#include "checkpoint/text.hpp"

#include <troupe/runtime/control_client.hpp>

#include <fmt/format.h>

#include <cstdio>
#include <tuple>
#include <utility>

namespace troupe::tool {

namespace {

using runtime::absence;
using runtime::absent_driver;
using runtime::control_client;
using runtime::explain_absence;
using runtime::find_driver;
using runtime::find_run;
using runtime::list_runs;
using runtime::stored_status;
using ordered = nlohmann::ordered_json;

/// What a command says of a run, and how it knows.
struct known_status {
  ordered status;
  /// Why its driver did not answer.
  std::optional<absent_driver> absent;
};

known_status ask_or_read(const std::filesystem::path& run) {
  auto found = find_driver(run);
  if (auto* driver = std::get_if<control_client>(&found)) {
    if (auto status = driver->ask(actors::status_question{}))
      return {std::move(*status), {}};
    else
      found = explain_absence(run, status.error().message);
  }
  auto& absent = std::get<absent_driver>(found);
  auto status = stored_status(run, absent.why);
  if (absent.why != absence::ended)
    status["hint"] = absent.text;
  return {std::move(status), std::move(absent)};
}

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

int list_all_runs(const list_runs_arguments& given) {
  const auto runs = list_runs(given.storage);
  if (!runs)
    return complain(runs.error());
  auto rows = std::vector<std::vector<std::string>>{{"run", "state", "step", "workers", "since (UTC)", "metrics"}};
  auto document = ordered::array();
  for (const auto& run : *runs) {
    document.push_back(ask_or_read(run).status);
    rows.push_back(row_of(document.back()));
  }
  if (given.output == output_format::json)
    print_json({{"runs", document}});
  else if (runs->empty())
    fmt::print("no runs in {}\n", given.storage.string());
  else
    print_table(rows);
  return exit_good;
}

int show_status(const run_choice& given) {
  const auto run = find_run(given.run, given.storage);
  if (!run)
    return complain(run.error());
  auto [status, absent] = ask_or_read(*run);
  const auto slowest = absent ? std::string{} : read_slowest(*run);
  if (given.output == output_format::json) {
    if (!slowest.empty())
      status["late"] = slowest;
    print_json(status);
  } else {
    for (const auto& line : describe_status(status, {read_curve(*run, main_metric(status)), slowest}, 1000))
      fmt::print("{}\n", line);
    if (absent && absent->why != absence::ended)
      fmt::print("{}\n", printable(absent->text));
  }
  const auto is_bad = status.value("state", std::string{}) == "failed" || (absent && absent->why == absence::lost);
  return is_bad ? exit_found : exit_good;
}

} // namespace troupe::tool
