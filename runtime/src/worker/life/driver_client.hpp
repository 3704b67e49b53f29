#pragma once

#include <troupe/collectives/tcp_communicator.hpp>
#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/messages.hpp>
#include <troupe/runtime/descriptor_link.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace troupe::runtime {

class part_stream;

/// The requests of a worker's training side to the run's actors. Calls block; each is made by one thread at a time.
/// Implemented over CAF in one file; tests use fakes.
class driver_client {
 public:
  virtual ~driver_client() = default;

  /// An all-gather over the control plane. From the training thread.
  [[nodiscard]] virtual expected<exchange_result> exchange(const exchange_request& message) = 0;

  /// The same among the ranks of a staging group. From the stager's thread.
  [[nodiscard]] virtual expected<exchange_result> exchange_staging(const exchange_request& message) = 0;

  /// Reports that an exchange of a staging group will not be complete. From any thread.
  virtual void end(const exchange_ended& message) = 0;

  /// An all-gather of descriptors among the ranks of this node, as `descriptor_link::exchange` does it. From any
  /// thread.
  [[nodiscard]] virtual expected<std::vector<std::vector<collectives::unique_fd>>>
  exchange_descriptors(const descriptor_offer& place, std::span<const int> mine, const std::stop_token& cancelled) = 0;

  /// Returns once all workers have the same plan. From the training thread.
  [[nodiscard]] virtual expected<plan_accepted> agree(const run_plan& plan) = 0;

  /// Returns this worker's next place once all remaining workers have reported. From the training thread.
  [[nodiscard]] virtual expected<next_generation> regroup(const regroup_report& report) = 0;

  /// Reports that this joiner has caught up with the others. From the training thread.
  virtual void tell(const caught_up& message) = 0;

  /// Returns once the checkpoint is durable or given up. From the snapshot writer's thread.
  [[nodiscard]] virtual expected<checkpoint_outcome> deliver(const checkpoint_part& part) = 0;

  /// The same of the whole state, by a worker that saves it before it ends. From the training thread, or one of the
  /// group's.
  [[nodiscard]] virtual expected<checkpoint_outcome> deliver_last(const checkpoint_part&) {
    return fail(errc::invalid_argument, "there is no store to deliver to");
  }

  /// The store's view of this worker's file. From the training thread.
  [[nodiscard]] virtual expected<storage_view> probe(const storage_probe&) {
    return fail(errc::invalid_argument, "there is no store to ask");
  }

  /// A stream to the driver at `HOST:PORT`, which connects when it is used. From any thread.
  [[nodiscard]] virtual expected<std::shared_ptr<part_stream>> open_part_stream(const std::string&) {
    return fail(errc::invalid_argument, "there is no driver to stream to");
  }

  /// The key with which the workers of this run authenticate each other. From any thread.
  [[nodiscard]] virtual collectives::run_secret group_secret() const { return {}; }

  /// Requests a permit to exit, because the GPU's library does not return. Waits until it is granted. From a thread of
  /// the group.
  [[nodiscard]] virtual expected<exit_granted> request_exit(const exit_request&) {
    return fail(errc::invalid_argument, "there is nobody to ask");
  }

  /// The permit is not needed any more. From a thread of the group.
  virtual void withdraw(const exit_withdrawn&) {}

  /// Returns once the driver has taken the batch in: that is the back pressure. From the metrics thread.
  [[nodiscard]] virtual expected<void> push(const metrics_batch& batch) = 0;

  /// Reports the end of the training function. From the training thread.
  virtual void finish(const worker_finished& message) = 0;
};

} // namespace troupe::runtime
