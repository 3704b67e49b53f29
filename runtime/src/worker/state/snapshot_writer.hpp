#pragma once

#include "worker/state/staging_memory.hpp"

#include <troupe/error.hpp>
#include <troupe/messages.hpp>
#include <troupe/serialization/checkpoint/chunk_plan.hpp>
#include <troupe/tracked_state.hpp>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <stop_token>
#include <thread>
#include <vector>

namespace troupe::runtime {

/// A stable copy of one rank's share of a checkpoint.
struct staged_part {
  const checkpoint_part& head;
  const serialization::chunk_plan& plan;
  /// The bytes of the part's chunks, in the plan's order, without gaps.
  std::span<const std::byte> bytes;
};

/// Copies this rank's share of the tracked state, and brings the copies to the device and to the store in the
/// background: on its own thread with low priority, one after the other. Its owner calls it from the training thread,
/// except for `abandon`.
class snapshot_writer {
 public:
  /// Writes a copy and reports it. Called from the writer's thread.
  struct destination {
    /// Writes the part to the device. Checks the token now and then, and gives up on request.
    std::function<expected<serialization::part_report>(const staged_part&, const std::stop_token&)> write;
    /// Reports the part to the store, and returns once the checkpoint is durable or given up.
    std::function<expected<checkpoint_outcome>(const checkpoint_part&)> deliver;
  };

  /// Has memory for `copies` at a time, at least one.
  snapshot_writer(destination where, std::uint32_t copies);
  /// Abandons checkpoints in flight, and waits until writing has stopped.
  ~snapshot_writer();
  snapshot_writer(const snapshot_writer&) = delete;
  snapshot_writer& operator=(const snapshot_writer&) = delete;

  /// Prepares memory for copies of `size_bytes` in the background, for fast copies from `from` if it is not null.
  void prepare(std::size_t size_bytes, std::shared_ptr<tensor_memory> from = nullptr);

  /// Copies the chunks of part `head.rank` from `state`, whose tensors are those in `head`; the state may change after
  /// that. Waits first while all copies are in use. The writer adds the report to `head`, or reports an error to the
  /// store.
  void begin(checkpoint_part head, serialization::chunk_plan plan, const tracked_state& state);

  /// The number of begun checkpoints that are neither durable nor given up.
  [[nodiscard]] std::uint32_t in_flight() const;

  /// Waits until nothing is in flight, or all that is has been abandoned. Returns what became of the last that was
  /// begun; fails with `errc::aborted` if it was abandoned, and as `deliver` does.
  [[nodiscard]] expected<checkpoint_outcome> wait();

  /// The generation is over: abandons copies that are not written yet. The store decides about parts that it already
  /// has. From any thread.
  void abandon();

  /// Whether any was abandoned, or refused by the store, since the last call.
  [[nodiscard]] bool take_lost();

 private:
  struct job {
    checkpoint_part head;
    serialization::chunk_plan plan;
    staging_memory memory;
    std::size_t size_bytes = 0;
    bool delivering = false;
    std::stop_source stop;
  };

  void loop();
  void run(job& which, std::unique_lock<std::mutex>& lock);
  [[nodiscard]] bool all_abandoned() const;

  destination where_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::list<job> jobs_;
  std::vector<staging_memory> free_;
  std::size_t wanted_bytes_ = 0;
  std::shared_ptr<tensor_memory> wanted_for_;
  std::optional<expected<checkpoint_outcome>> last_;
  bool lost_ = false;
  bool stop_ = false;
  std::thread thread_;
};

/// The bytes of one part of a plan.
[[nodiscard]] std::size_t share_bytes(const serialization::chunk_plan& plan, std::uint32_t part);

/// Copies the chunks of one part, in order, to the beginning of `target`, which is large enough. Throws the errors of a
/// `tensor_memory`.
void copy_share(const serialization::chunk_plan& plan, std::uint32_t part, const tracked_state& state,
                std::span<std::byte> target);

} // namespace troupe::runtime
