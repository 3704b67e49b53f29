#include "submit.hpp"

#include "cluster_options.hpp"
#include "nodes/list.hpp"

#include <command_line.hpp>

#include <troupe/actors/run_name.hpp>
#include <troupe/runtime/jobs.hpp>
#include <troupe/runtime/node_host.hpp>

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <pwd.h>
#include <string>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

namespace troupe::tool {

namespace {

struct submit_arguments {
  cluster_choice cluster;
  runtime::job_record job;
  std::string node;
  std::vector<std::filesystem::path> beside;
  std::uint64_t time_limit_s = 0;
  std::uint64_t wait_s = 0;
  bool follows = false;
  output_format output = output_format::text;
};

std::string user_name() {
  const auto* entry = ::getpwuid(::geteuid());
  return entry != nullptr ? entry->pw_name : std::to_string(::geteuid());
}

/// Whether the program is named by a path, and not by a name in the nodes' `--program-dir`.
bool is_path(const std::string& program) {
  return program.find('/') != std::string::npos;
}

/// The program, if its file is on this host, and what it needs beside it.
std::vector<std::filesystem::path> files_to_send(const std::string& program,
                                                 const std::vector<std::filesystem::path>& beside) {
  auto code = std::error_code{};
  if (!is_path(program) || !std::filesystem::is_regular_file(program, code))
    return {};
  std::vector<std::filesystem::path> result{program};
  result.insert(result.end(), beside.begin(), beside.end());
  return result;
}

/// A path becomes absolute: the node has another working directory.
std::string full_path(const std::string& program) {
  auto code = std::error_code{};
  return is_path(program) ? std::filesystem::absolute(program, code).string() : program;
}

expected<runtime::submitted_job> hand_in(const submit_arguments& given) {
  if (given.cluster.entries.empty())
    return fail(no_cluster());
  auto job = given.job;
  const auto now = std::chrono::system_clock::now();
  job.arguments.front() = full_path(job.arguments.front());
  if (job.name.empty())
    job.name = actors::fresh_run_name(std::filesystem::path{job.arguments.front()}.filename().string(), now);
  job.submitter = fmt::format("{}@{}", user_name(), runtime::local_host_name());
  job.submitted =
      static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count());
  job.time_limit = std::chrono::seconds{given.time_limit_s};
  job.wait_for_resources = std::chrono::seconds{given.wait_s};
  auto node = given.node;
  if (const auto where = parse_endpoint(node); !node.empty() && (!where || where->port == 0)) {
    TROUPE_TRY(const auto members, runtime::list_members(given.cluster.entries, given.cluster.access));
    TROUPE_TRY(node, find_member(members, node));
  }
  auto files = files_to_send(job.arguments.front(), given.beside);
  if (files.empty() && !given.beside.empty())
    return fail(errc::invalid_argument,
                fmt::format("--with sends files along with the program, and there is no file {} "
                            "on this host: give the program's path",
                            job.arguments.front()));
  return runtime::submit_job(given.cluster.entries, {std::move(job), std::move(node), std::move(files)},
                             given.cluster.access);
}

int submit(const submit_arguments& given) {
  const auto submitted = hand_in(given);
  if (!submitted) {
    fmt::print(stderr, "troupe submit: {}\n", submitted.error().message);
    return submitted.error().code == errc::invalid_argument ? exit_trouble : exit_found;
  }
  const auto* job = &submitted->job;
  const auto& name = job->what.name;
  if (given.output == output_format::json)
    fmt::print("{}\n", nlohmann::ordered_json{{"job", name}, {"node", job->host}}.dump(2));
  else
    fmt::print("job {} is on {}{}\n", name, job->host,
               job->what.keepers.size() > 1 ? fmt::format(", and goes on elsewhere if that host is lost") : "");
  for (const auto& each : submitted->notes)
    fmt::print(stderr, "{}\n", each);
  if (!submitted->is_kept)
    fmt::print(stderr, "warning: no other node has the job yet: they do not answer {}\n", job->host);
  if (given.follows)
    return watch({name, {}, given.cluster, given.output});
  if (given.output == output_format::text)
    fmt::print(stderr,
               "`troupe watch {}` shows what it does, `troupe logs {}` what its workers write, and `troupe "
               "stop {}` ends it\n",
               name, name, name);
  return exit_good;
}

} // namespace

void add_submit(CLI::App& app, command& chosen) {
  auto given = std::make_shared<submit_arguments>();
  auto* added = app.add_subcommand("submit", "Have a node of a cluster run a program, which outlives this terminal and "
                                             "is started again when it dies");
  add_cluster_options(*added, given->cluster);
  added->add_option("--name", given->job.name,
                    "The job's name, and that of its run if the program gives none (default: the program's, with the "
                    "time). A job that has ended goes on under its name");
  added->add_option("--node", given->node, "The node that runs it (default: one that runs fewest jobs)");
  added->add_option("--directory", given->job.directory,
                    "The program's working directory on that node (default: one of the job's own)");
  added->add_flag("--shared", given->job.is_shared,
                  "All nodes share the file system of --directory, so that each can go on with the job there");
  apps::add_named_values(
      *added, "--env",
      [given](const std::string& name, const std::string& value) { given->job.environment[name] = value; },
      "A variable for the program");
  added
      ->add_option("--with", given->beside,
                   "A file that the program needs beside it, such as the program of its workers; may be repeated. Sent "
                   "with the program to nodes that lack them and take programs (caf-node --accept-programs)")
      ->check(CLI::ExistingFile)
      ->allow_extra_args(false);
  added->add_option("--mirror", given->job.mirror,
                    "A second place for the checkpoints of runs that name none: a directory, rclone:REMOTE:PATH or "
                    "node:HOST:PORT. From there another node goes on with the job when the host of its driver is lost");
  added->add_option("--time-limit", given->time_limit_s,
                    "Seconds after which runs that have no limit of their own "
                    "take a checkpoint and stop (default: none)");
  added->add_option("--wait", given->wait_s,
                    "Seconds for which runs that have no time of their own wait for resources that others have leased "
                    "(default: they fail at once)");
  added->add_flag("--watch", given->follows, "Show what it does until it ends; Ctrl-C leaves the job alone");
  added->add_flag_callback(
      "--json", [given] { given->output = output_format::json; }, "Print JSON, for scripts");
  added
      ->add_option(
          "PROGRAM", given->job.arguments,
          "The program, after --, and its arguments. Its path, which may be sent to the nodes, or its name in the "
          "nodes' --program-dir")
      ->required()
      ->expected(-1);
  added->positionals_at_end();
  added->footer(
      "Exit codes: 0 a node has the job, 1 none takes it, 2 wrong usage; with --watch those of 'troupe watch'.");
  added->callback([given, &chosen] { chosen = [given] { return submit(*given); }; });
}

} // namespace troupe::tool
