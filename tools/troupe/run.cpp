#include "run.hpp"

#include "run/commands.hpp"

#include <command_line.hpp>

#include <memory>

namespace troupe::tool {

namespace {

constexpr auto exit_codes = "Exit codes: 0 all digests are equal, 1 a step differs, 2 wrong usage, nothing found, or "
                            "the command failed.";

} // namespace

void add_run(CLI::App& app, command& chosen) {
  auto again = std::make_shared<replay_arguments>();
  auto* replays = app.add_subcommand("replay", "Repeat steps of a run that kept a ledger, and compare them bit for bit "
                                               "with what it recorded; reads the run only");
  replays->add_option("RUN", again->run, "The run's directory, such as runs/latest")->required();
  replays->add_option("--step", again->step, "The step to repeat")->required()->check(CLI::Range(1ULL, ~0ULL >> 1));
  replays->add_option("--until", again->until, "Repeat all steps from --step to this one");
  auto* workers = replays->add_option("--workers", again->workers, "Worker processes; the result does not depend on it")
                      ->check(CLI::Range(1, 1024))
                      ->capture_default_str();
  replays->add_flag("--debug", again->debug, "In one process, under gdb: set breakpoints, then 'run'")
      ->excludes(workers);
  replays->add_option("--program", again->program, "The program, if it is not where the run had it");
  replays->footer(exit_codes);
  replays->callback([again, &chosen] { chosen = [again] { return replay(*again); }; });

  auto* runs = app.add_subcommand("run", "See what happened in a run");
  runs->require_subcommand(1);
  auto shown = std::make_shared<show_run_arguments>();
  auto* shows = runs->add_subcommand("show", "Show failures, metrics, goodput and the timeline of a run");
  shows->add_option("PATH", shown->run, "The run's directory, such as runs/latest")->required();
  shows->add_flag_callback(
      "--json", [shown] { shown->output = output_format::json; }, "Print one JSON document, for scripts");
  shows->footer("Exit codes: 0 success, 2 wrong usage or nothing found.");
  shows->callback([shown, &chosen] { chosen = [shown] { return show_run(*shown); }; });

  auto both = std::make_shared<bisect_arguments>();
  auto* bisects =
      app.add_subcommand("bisect", "Name the first step in which two runs that kept ledgers differ, and the "
                                   "tensors");
  bisects->add_option("RUN_A", both->left, "A run's directory")->required();
  bisects->add_option("RUN_B", both->right, "Another")->required();
  bisects->footer(exit_codes);
  bisects->callback([both, &chosen] { chosen = [both] { return bisect(*both); }; });
}

} // namespace troupe::tool
