#include "run/control_commands.hpp"

#include <fmt/format.h>

#include <utility>

namespace troupe::tool {

expected<std::unique_ptr<runtime::run_access>> open_run(const run_choice& which) {
  auto here = runtime::find_run(which.run, which.storage);
  if (here)
    return runtime::access_run(std::move(*here));
  if (which.cluster.entries.empty())
    return fail(here.error().code, here.error().message +
                                       "; for a job of a cluster name one of its nodes with --cluster, or in "
                                       "TROUPE_CLUSTER");
  return runtime::access_job(which.cluster.entries, which.run, which.cluster.access);
}

} // namespace troupe::tool
