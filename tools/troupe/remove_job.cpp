#include "remove_job.hpp"

#include "checkpoint/text.hpp"
#include "cluster_options.hpp"

#include <troupe/runtime/jobs.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace troupe::tool {

namespace {

struct removal_arguments {
  cluster_choice cluster;
  std::vector<std::string> jobs;
};

int removal_failed(const error& why) {
  fmt::print(stderr, "troupe rm: {}\n", printable(why.message));
  return why.code == errc::busy ? exit_found : exit_trouble;
}

/// What of a removed job is still there.
std::string what_is_left(const runtime::job_record& job) {
  std::string result;
  if (!job.directory.empty())
    result += fmt::format("; what its runs wrote to {} is left", printable(job.directory.string()));
  if (!job.mirror.empty())
    result += fmt::format("; its mirror {} is left", printable(job.mirror));
  return result;
}

int remove_jobs(const removal_arguments& given) {
  if (given.cluster.entries.empty())
    return removal_failed(no_cluster());
  auto code = exit_good;
  for (const auto& name : given.jobs) {
    const auto removed = runtime::remove_job(given.cluster.entries, name, given.cluster.access);
    if (removed)
      fmt::print("removed job {} from {}{}\n", name, removed->host, what_is_left(removed->what));
    else
      code = std::max(code, removal_failed(removed.error()));
  }
  return code;
}

} // namespace

void add_remove_job(CLI::App& app, command& chosen) {
  // Shared with the callback, because the options write to it.
  auto given = std::make_shared<removal_arguments>();
  auto* added = app.add_subcommand("rm", "Remove jobs that have ended from a cluster, with the runs and checkpoints in "
                                         "their directories on its nodes; their mirrors are left");
  add_cluster_options(*added, given->cluster);
  added->add_option("JOB", given->jobs, "The jobs' names")->required();
  added->footer("Exit codes: 0 all were removed, 1 a job has not ended, 2 wrong usage, or not found.");
  added->callback([given, &chosen] { chosen = [given] { return remove_jobs(*given); }; });
}

} // namespace troupe::tool
