#pragma once

#include "worker/group/quiescence_gate.hpp"
#include "worker/guarded.hpp"
#include "worker/life/activity.hpp"
#include "worker/life/driver_client.hpp"
#include "worker/life/metrics_pusher.hpp"
#include "worker/state/snapshot_writer.hpp"

#include <troupe/actors/decisions/checkpoint_decision.hpp>
#include <troupe/messages/begin.hpp>
#include <troupe/messages/checkpoint.hpp>
#include <troupe/serialization/checkpoint/reusing_writer.hpp>
#include <troupe/tracked_state.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

namespace troupe::runtime {

class part_stream;

/// A worker's share of the run's checkpoints: sends its parts to the driver, restores a checkpoint, and takes
/// checkpoints at boundaries between steps. Used by the training thread, except for `abandon` and `save_last_copy`.
/// Throws `exception`.
class checkpointer {
 public:
  /// The references outlive this object. `begin` is the worker's own.
  checkpointer(const begin_training& begin, driver_client& driver, tracked_state& state, metrics_pusher& pusher,
               activity& doing);

  /// Finds out whether this worker sees the driver's directory; its parts are streamed otherwise.
  void choose_sync(const group_place& place);
  /// Opens the checkpoint from which the run continues, if any. Returns its step number if this run continues it;
  /// nothing if the run begins at step 0.
  [[nodiscard]] std::optional<step_id> restore();
  /// Streams to the driver of this group from now on: one that was started again listens elsewhere.
  void follow_driver(const group_place& place);
  /// Prepares memory for this rank's share, which changes with the group.
  void prepare(const group_place& place);

  /// How many checkpoints this rank has in flight, and whether it owes one: for barriers.
  struct words {
    std::uint64_t in_flight = 0;
    bool owed = false;
  };
  [[nodiscard]] words barrier_words();
  void on_barrier(generation_id generation, const words& agreed) {
    agreement_.on_barrier(generation, agreed.in_flight, agreed.owed);
  }

  /// Carries out the agreement's decision at the boundary after `step`. Calls `lose_group` if the group is lost while
  /// this worker waits for the last checkpoint; it returns once the next group is formed.
  void at_boundary(step_id step, const actors::consider_checkpoint& what, const std::function<group_place()>& place,
                   const std::function<void(error)>& lose_group);
  /// Returns once no checkpoint is in flight. Throws if one was overtaken.
  void finish();

  /// The metrics for rank 0's part of a checkpoint: the last that the training function reported.
  void set_metrics(metric_map metrics) { last_metrics_ = std::move(metrics); }
  [[nodiscard]] const metric_map& metrics() const noexcept { return last_metrics_; }

  /// The generation is over, so checkpoints in flight will stay incomplete. From any thread.
  void abandon() { snapshots_.abandon(); }
  /// Saves the whole state before this process ends, while the training thread does not change it: the run ends, or
  /// this may be the last worker with the state. From the training thread, or from a thread of a hanging group.
  [[nodiscard]] expected<void> save_last_copy(quiescence_gate& gate, const group_place& place);

 private:
  [[nodiscard]] snapshot_writer::destination destination();
  [[nodiscard]] expected<serialization::part_report> write_to_directory(const staged_part& part,
                                                                        const std::stop_token& stop);
  void stream_to(const std::string& address);
  [[nodiscard]] bool sees_storage(const group_place& place);
  [[nodiscard]] bool tracks_nothing() const;
  [[nodiscard]] checkpoint_part describe_part(step_id step, const group_place& place) const;
  void begin(step_id step, const group_place& place, bool finishes_run);
  [[nodiscard]] std::filesystem::path directory() const;

  const begin_training& begin_;
  driver_client& driver_;
  tracked_state& state_;
  metrics_pusher& pusher_;
  activity& activity_;
  actors::checkpoint_agreement agreement_;
  metric_map last_metrics_;
  /// Empty where parts are written to the directory.
  struct streaming {
    std::string address;
    std::shared_ptr<part_stream> to;
  };
  /// Also used by the snapshot writer's thread.
  guarded<streaming> streamed_;
  /// Used by the same thread.
  serialization::reusing_writer part_writer_;
  /// Ends, with its thread, before what its thread uses.
  snapshot_writer snapshots_;
};

} // namespace troupe::runtime
