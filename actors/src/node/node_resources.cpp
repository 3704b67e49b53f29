#include "node/node_resources.hpp"

#include "node/launches.hpp"

#include <troupe/actors/decisions/resource_sums.hpp>
#include <troupe/gpu_share.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <unistd.h>

namespace troupe::actors {

namespace {

/// Another program's numbers, from which sums and quotients are made.
expected<void> check_gpus(double gpus) {
  if (is_gpu_number(gpus))
    return {};
  return fail(errc::invalid_argument, fmt::format("the driver asks for workers with {} GPUs each: a worker takes whole "
                                                  "GPUs, or a share of one from {} on",
                                                  gpus, least_gpu_share));
}

} // namespace

node_resources::node_resources(const node_config& config)
    : host_(config.host),
      address_(config.address),
      labels_(config.labels),
      devices_(names_of_devices(config)),
      leases_(config.capacity) {}

node_offer node_resources::offer(const offer_request& request, const hosted_run* before, time now) {
  if (request.waits)
    leases_.wait(*request.waits, now);
  const auto& run = before == nullptr ? request.run : before->what.run;
  auto ticket = request.waits ? request.waits->ticket : lease_table::youngest(run);
  ticket.run = run;
  auto open = leases_.open_to(ticket, now);
  open.gpus = std::min(open.gpus, static_cast<double>(devices_.open_to(run)));
  return {host_,           address_,           static_cast<std::uint32_t>(::getpid()),
          std::move(open), leases_.capacity(), leases_.describe_holders(ticket, leases_.capacity(), now),
          labels_};
}

resources node_resources::free(time now) const {
  auto result = leases_.open_to(lease_table::youngest({}), now);
  result.gpus = std::min(result.gpus, static_cast<double>(devices_.open_to({})));
  return result;
}

expected<void> node_resources::lease(const lease_request& request, const hosted_run* before, time now) {
  if (request.amount.gpus < 0)
    return fail(errc::invalid_argument, fmt::format("the driver asks for {} GPUs", request.amount.gpus));
  if (before != nullptr)
    leases_.end(before->what.run);
  return leases_.lease(request, now);
}

expected<std::vector<launch_request>> node_resources::take(hosted_run& run, const start_workers& request, time now) {
  TROUPE_TRY(check_gpus(request.each.gpus));
  for (const auto& each : request.workers)
    TROUPE_TRY(check_gpus(each.gpus));
  const auto workers = run.workers.count_running() + static_cast<std::uint32_t>(request.workers.size());
  TROUPE_TRY(leases_.use(request.run, resources_of(request.each, workers), now));
  run.each = request.each;
  auto launches = make_launches(request, run.what.secret, devices_);
  if (!launches)
    std::ignore = leases_.use(request.run, resources_of(run.each, run.workers.count_running()), now);
  return launches;
}

void node_resources::give_back(const hosted_run& run, worker_id worker, time now) {
  devices_.give_back(run.what.run, worker);
  // Less than before is always granted.
  std::ignore = leases_.use(run.what.run, resources_of(run.each, run.workers.count_running()), now);
}

} // namespace troupe::actors
