#include "run.hpp"

#include "dashboard/commands.hpp"
#include "run/commands.hpp"
#include "run/control_commands.hpp"
#include "run/over_ssh.hpp"

#include <command_line.hpp>

#include <memory>
#include <utility>

namespace troupe::tool {

namespace {

constexpr auto run_exit_codes =
    "Exit codes: 0 all digests are equal, 1 a step differs, 2 wrong usage, nothing found, or "
    "the command failed.";

constexpr auto run_help = "The run's directory, or its name in --storage ('latest' is the one that began last)";

constexpr auto control_exit_codes =
    "Exit codes: 0 done, 1 refused, failed, or the run ended first, 2 wrong usage, or no driver on this machine.";

/// Adds `--host`, and has the command executed there if it is given.
template <class Arguments>
void add_execution(CLI::App& added, command& chosen, const std::shared_ptr<Arguments>& given,
                   const std::shared_ptr<std::string>& host, int (*run)(const Arguments&)) {
  added.add_option("--host", *host,
                   "Do it on this host, over ssh, as USER@HOST or a name in ~/.ssh/config; paths are paths there");
  added.callback([given, host, run, &chosen] {
    chosen = [given, host, run] {
      return host->empty() ? run(*given) : execute_over_ssh(*host, without_host(kept_arguments()));
    };
  });
}

/// Adds a subcommand about one run, whose choice `choice_of` finds in its arguments.
template <class Arguments, class Choice>
std::pair<CLI::App*, std::shared_ptr<Arguments>> add_run_command(CLI::App& parent, command& chosen, const char* name,
                                                                 const char* description, int (*run)(const Arguments&),
                                                                 Choice choice_of) {
  // Shared with the callbacks, because the options write to it.
  auto given = std::make_shared<Arguments>();
  run_choice& which = choice_of(*given);
  auto* added = parent.add_subcommand(name, description);
  added->add_option("RUN", which.run, run_help)->required();
  added->add_option("--storage", which.storage, "The directory in which runs are")->capture_default_str();
  apps::refuse_removed(*added, "--cluster",
                       "name the run's host with --host, and the run by its directory or name there");
  added->add_flag_callback(
      "--json", [given, choice_of] { choice_of(*given).output = output_format::json; }, "Print JSON, for scripts");
  add_execution(*added, chosen, given, std::make_shared<std::string>(), run);
  return {added, given};
}

run_choice& itself(run_choice& x) {
  return x;
}

constexpr auto which_of = [](auto& x) -> run_choice& { return x.which; };

void add_status(CLI::App& parent, command& chosen) {
  auto [added, given] =
      add_run_command<run_choice>(parent, chosen, "status", "Show what a run does", show_status, itself);
  added->footer("Exit codes: 0 success, 1 the run has failed or its driver is lost, 2 wrong usage or nothing found.");
}

void add_watch(CLI::App& parent, command& chosen) {
  auto [added, given] = add_run_command<run_choice>(
      parent, chosen, "watch", "Show what a run does until it ends; Ctrl-C leaves the run alone", watch, itself);
  added->footer(
      "Exit codes: the run's: 0 completed or stopped, 1 failed, 75 stopped by its time limit; 1 if its driver "
      "is lost, 2 wrong usage, nothing found, or no driver on this machine.");
}

void add_stop(CLI::App& parent, command& chosen) {
  auto [added, given] = add_run_command<stop_arguments>(
      parent, chosen, "stop", "Let a run finish its step, take a checkpoint and stop", stop, which_of);
  added->add_flag("--now", given->now, "Stop at once: what came after the last checkpoint is lost");
  added->add_flag("!--no-wait", given->waits, "Do not wait until it has ended");
  added->footer(
      "Exit codes: 0 it has stopped or was complete, 1 it failed instead, 2 wrong usage, or no driver on this "
      "machine.");
}

void add_logs(CLI::App& parent, command& chosen) {
  auto [added, given] =
      add_run_command<logs_arguments>(parent, chosen, "logs", "Print what a run's workers wrote", logs, which_of);
  added->add_option("--rank", given->rank, "Only the workers that had this rank last");
  apps::refuse_removed(*added, "--driver", "what a driver writes is where systemd, Slurm or Kubernetes keeps it");
  added->add_flag("-f,--follow", given->follows, "Go on with what they write, until the run ends");
  added->add_option("--lines", given->lines, "Only the last so many lines of each worker (default: all)");
  added->footer("Exit codes: 0 success, 1 nothing of this rank, 2 wrong usage or nothing found.");
}

void add_dashboard(CLI::App& app, command& chosen) {
  auto given = std::make_shared<dashboard_arguments>();
  auto* added = app.add_subcommand("dashboard", "Serve a page about the runs of a storage directory, for browsers");
  added->add_option("DIRECTORY", given->storage, "The directory in which runs are")->capture_default_str();
  added
      ->add_option(
          "--listen", given->listen,
          "HOST:PORT of the page; port 0 chooses a free one. Beyond loopback it needs a token and a certificate")
      ->type_name("HOST:PORT")
      ->capture_default_str();
  added->add_option("--token-file", given->token_file, "A file with the token that who opens the page must know");
  auto* certificate =
      added->add_option("--certificate", given->certificate, "PEM file of the certificate chain, for HTTPS");
  auto* key = added->add_option("--key", given->key, "PEM file of its private key")->needs(certificate);
  certificate->needs(key);
  added->footer("Exit codes: 0 ended by Ctrl-C, 2 wrong usage, or the port is in use.");
  added->callback([given, &chosen] { chosen = [given] { return serve_dashboard(*given); }; });
}

void add_pictures(CLI::App& app, command& chosen) {
  auto [plots, plotted] = add_run_command<plot_arguments>(
      app, chosen, "plot", "Draw a run's curves and timeline in the terminal, or as SVG or PNG", plot, which_of);
  plots->remove_option(plots->get_option("--json"));
  plots->add_option("METRIC", plotted->metrics, "Which curves (default: all)");
  plots->add_option("--svg", plotted->svg, "Write an SVG file instead; with --host there");
  plots->add_option("--png", plotted->png, "The same as PNG, by rsvg-convert (librsvg2-bin)");
  auto [reports, reported] = add_run_command<report_arguments>(
      app, chosen, "report", "Write all about a run into one HTML file, which needs nothing else", report, which_of);
  reports->remove_option(reports->get_option("--json"));
  reports->add_option("-o,--output", reported->output,
                      "The file, with --host there; - for standard output (default: RUN-report.html)");
  for (auto* each : {plots, reports})
    each->footer("Exit codes: 0 success, 2 wrong usage or nothing found.");
}

/// What has a short form.
void add_watching(CLI::App& parent, command& chosen) {
  add_status(parent, chosen);
  add_watch(parent, chosen);
  add_logs(parent, chosen);
  add_stop(parent, chosen);
}

void add_steering(CLI::App& parent, command& chosen) {
  auto [pauses, paused] = add_run_command<pause_arguments>(
      parent, chosen, "pause", "Hold a run after its step, until 'troupe run resume'", pause, which_of);
  pauses->add_flag("!--no-wait", paused->waits, "Do not wait until the step is over");
  auto [resumes, resumed] =
      add_run_command<run_choice>(parent, chosen, "resume", "Let a paused run go on", resume, itself);
  auto [resizes, resized] = add_run_command<resize_arguments>(
      parent, chosen, "resize", "Give a run another number of workers, which changes no result", resize, which_of);
  resizes->add_option("WORKERS", resized->workers, "From 1 to the run's number of shards")->required();
  for (auto* each : {pauses, resumes, resizes})
    each->footer(control_exit_codes);
}

} // namespace

void add_save_now(CLI::App& parent, command& chosen) {
  auto [added, given] = add_run_command<save_arguments>(
      parent, chosen, "now", "Have a run take a checkpoint after its step, and print its path", save_now, which_of);
  added->add_flag("!--no-wait", given->waits, "Do not wait until it is durable");
  added->footer(control_exit_codes);
}

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
  replays->footer(run_exit_codes);
  replays->callback([again, &chosen] { chosen = [again] { return replay(*again); }; });

  auto* runs = app.add_subcommand("run", "Watch and steer a run, and see what happened in it");
  runs->require_subcommand(1);
  add_watching(*runs, chosen);
  add_steering(*runs, chosen);
  add_watching(app, chosen);
  add_dashboard(app, chosen);
  add_pictures(app, chosen);
  auto listed = std::make_shared<list_runs_arguments>();
  auto* lists = app.add_subcommand("runs", "List the runs of a storage directory, and what they do");
  lists->add_option("DIRECTORY", listed->storage, "The directory in which runs are")->capture_default_str();
  lists->add_flag_callback(
      "--json", [listed] { listed->output = output_format::json; }, "Print one JSON document, for scripts");
  lists->footer("Exit codes: 0 success, 2 wrong usage or nothing found.");
  add_execution(*lists, chosen, listed, std::make_shared<std::string>(), list_all_runs);
  auto shown = std::make_shared<show_run_arguments>();
  auto* shows = runs->add_subcommand("show", "Show failures, metrics, goodput and the timeline of a run");
  shows->add_option("PATH", shown->run, "The run's directory, such as runs/latest, or its name in runs")->required();
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
  bisects->footer(run_exit_codes);
  bisects->callback([both, &chosen] { chosen = [both] { return bisect(*both); }; });
}

} // namespace troupe::tool
