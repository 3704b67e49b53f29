#pragma once

#include "node/hosted_run.hpp"
#include <troupe/actors/decisions/device_ledger.hpp>
#include <troupe/actors/decisions/lease_table.hpp>
#include <troupe/actors/node.hpp>
#include <troupe/actors/process_launcher.hpp>
#include <troupe/error.hpp>
#include <troupe/messages/node.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace troupe::actors {

/// What a node has, and which of its runs has what: leases of all kinds of resources, and which GPU is whose.
class node_resources {
 public:
  using time = lease_table::time;

  explicit node_resources(const node_config& config);

  /// What the run could have, and who has the rest. `before` is the run whose resources count as this one's, or null.
  [[nodiscard]] node_offer offer(const offer_request& request, const hosted_run* before, time now);
  [[nodiscard]] expected<void> lease(const lease_request& request, const hosted_run* before, time now);

  /// What no run has.
  [[nodiscard]] resources free(time now) const;
  [[nodiscard]] std::uint32_t used_gpus() const { return devices_.size() - devices_.open_to({}); }

  void open(const hosted_run& run) { leases_.open(run.what.run, run.what.run_name); }
  /// What to start for the workers of this request. Fails with `errc::busy` or `errc::unsatisfiable` if there are not
  /// enough resources, and takes none then.
  [[nodiscard]] expected<std::vector<launch_request>> take(hosted_run& run, const start_workers& request, time now);
  /// A worker of the run has ended, or was not started.
  void give_back(const hosted_run& run, worker_id worker, time now);
  /// A process that no run of this node has.
  void give_back(const run_id& run, worker_id worker) { devices_.give_back(run, worker); }
  void end(const run_id& run) { leases_.end(run); }

 private:
  std::string host_;
  std::string address_;
  std::map<std::string, std::string> labels_;
  device_ledger devices_;
  lease_table leases_;
};

} // namespace troupe::actors
