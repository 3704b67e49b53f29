#include "node/run_table.hpp"

#include <troupe/serialization/files/digest.hpp>

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace troupe::actors {

using serialization::bytes_of;

expected<void> check_command(const open_run& run, std::string_view command, const std::string& secret,
                             const run_claim& claim) {
  if (!serialization::equal_constant_time(bytes_of(secret), bytes_of(run.secret)))
    return fail(errc::wrong_secret, fmt::format("refused {} for run {} ({}): its sender does not know the run's secret",
                                                command, run.run_name, run.run));
  if (claim < run.claim)
    return fail(errc::superseded, fmt::format("another driver has taken run {} over", run.run_name));
  return {};
}

error unknown_run(const run_id& run) {
  return {errc::stale_generation, fmt::format("this node has no run {} (it has ended, or never began here)", run)};
}

hosted_run* run_table::find(const run_id& run) {
  auto* found = find_any(run);
  return found == nullptr || found->ending ? nullptr : found;
}

hosted_run* run_table::find_any(const run_id& run) {
  auto i = runs_.find(run);
  return i == runs_.end() ? nullptr : &i->second;
}

const hosted_run* run_table::find_orphan(const std::optional<run_proof>& proof) const {
  const auto found = proof ? runs_.find(proof->run) : runs_.end();
  if (found == runs_.end() || !found->second.alone_since || found->second.ending)
    return nullptr;
  const auto& run = found->second;
  return serialization::equal_constant_time(bytes_of(proof->secret), bytes_of(run.what.secret)) ? &run : nullptr;
}

hosted_run& run_table::add(const open_run& request, std::string program_path) {
  return runs_
      .emplace(request.run, hosted_run{request, std::move(program_path), join_handshake{request.secret},
                                       worker_watch{std::chrono::milliseconds{request.heartbeat_timeout_ms}}})
      .first->second;
}

std::optional<hosted_run> run_table::take(const run_id& run) {
  auto found = runs_.extract(run);
  if (found.empty())
    return std::nullopt;
  return std::move(found.mapped());
}

} // namespace troupe::actors
