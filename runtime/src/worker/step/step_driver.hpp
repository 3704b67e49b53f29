#pragma once

#include "worker/session.hpp"
#include "worker/step/body_check.hpp"
#include "worker/step/finite_watch.hpp"
#include "worker/step/gradient_exchange.hpp"
#include "worker/step/redundant_checker.hpp"
#include "worker/step/step_bucket.hpp"
#include "worker/step/step_digester.hpp"
#include "worker/step/step_timer.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/data_order.hpp>
#include <troupe/messages/worker.hpp>
#include <troupe/train_context.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace troupe {

/// Leaves the body of a step that is computed again. Not for the user's handlers, so of no standard type.
struct step_interrupted {};

/// Runs one step of a loop after the other: contributions, reduction, barrier, application; again where the group was
/// lost before the step was committed. On a joiner that catches up: repeats the steps of the members. Used by the
/// training thread.
class step_driver {
 public:
  step_driver(train_context::impl& session, const runtime::loop_plan& plan);
  ~step_driver();
  step_driver(const step_driver&) = delete;
  step_driver& operator=(const step_driver&) = delete;

  void run(step_id id, const step_body& body);

  /// On a joiner: runs the body of a step that the members have committed, without shards, so that it applies what they
  /// reduced. False if the members are lost: the step is as if it had not begun, but for the tracked state.
  [[nodiscard]] bool repeat(step_id id, const step_body& body);

  /// This rank waited for a checkpoint after the last step.
  void note_checkpoint(std::chrono::steady_clock::duration time) noexcept { timer_.add_checkpoint(time); }

  /// Shards that were computed twice.
  [[nodiscard]] const runtime::redundant_checker& checker() const noexcept { return checker_; }

  // What steps, lists of shards and shards stand for.
  [[nodiscard]] const step_plan& plan() const noexcept { return plan_; }
  [[nodiscard]] step_id id() const noexcept { return at_.id; }
  [[nodiscard]] const data_order& order() const noexcept { return order_; }
  [[nodiscard]] std::uint64_t seed() const noexcept;
  /// With the one that this rank computes only to be compared, which is the last.
  [[nodiscard]] std::uint32_t shards() const noexcept { return at_.range.size() + (checker_.again() ? 1 : 0); }
  void open_shard(shard& target, std::uint32_t place);
  void open_shard(device_shard& target, std::uint32_t place);
  void mark_ready(shard_id which, std::uint64_t first, std::uint64_t count);
  std::span<const float> all_reduce();
  device_span<const float> all_reduce_on_gpu();
  /// Throws before `all_reduce`.
  [[nodiscard]] double metric(std::size_t index, std::string_view name) const;
  void report(metric_map values);
  /// Throws before `all_reduce`.
  void finish();
  /// Whether the body of the last step has finished the run.
  [[nodiscard]] bool finishes_run() const noexcept { return finishes_run_; }
  /// A contribution to the metric of this index is NaN or infinite.
  void note_not_finite(shard_id shard, std::size_t metric, double value);

 private:
  /// How far the present try of a step is.
  enum class try_state : std::uint8_t {
    /// Contributions are computed.
    computing,
    /// The reduced gradient is here, and the step counts.
    reduced,
    /// It is over without a result: the step is computed again.
    interrupted,
  };
  /// What the body computes with.
  enum class mode : std::uint8_t { member, joiner };

  void record(times_row row);
  [[nodiscard]] std::uint64_t sent_by_group();
  [[nodiscard]] bool adopt_generation();
  void form_exchange();
  void try_body(const step_body& body);
  void run_body(const step_body& body);
  void commit_step();
  void take_from_members();
  void hand_to_joiners();
  void leave_if_regrouped();
  void lose_group(error reason);
  void save_if_last(error reason);
  void reduce();
  void finish_exchange();
  void start_complete_parts();
  [[nodiscard]] runtime::bucket_memory open(basic_shard& target, std::uint32_t place);
  [[nodiscard]] runtime::bucket_memory open_own(shard_id id);
  [[nodiscard]] runtime::bucket_memory open_again();
  void check_finite();

  train_context::impl& session_;
  const runtime::loop_plan& plan_;
  runtime::step_bucket bucket_;
  data_order order_;
  runtime::redundant_checker checker_;
  /// With `keep_ledger`.
  std::optional<runtime::step_digester> digester_;
  runtime::step_timer timer_;
  /// Of `at_.generation`; none at first.
  std::unique_ptr<runtime::gradient_exchange> exchange_;
  /// The present step, and this worker's place in the generation that computes it.
  struct step_place {
    step_id id;
    generation_id generation;
    shard_range range;
    rank_id rank;
    std::size_t ranks = 1;
  };
  step_place at_;
  try_state state_ = try_state::computing;
  mode mode_ = mode::member;
  /// What this worker has contributed to the present try.
  struct contributions {
    std::uint32_t next = 0;
    /// Of the last shard, the elements that are ready, by part.
    std::vector<std::uint64_t> ready;
    /// Of the open shard.
    std::vector<std::uint64_t> samples;
    /// Of the samples that all shards were given, for the ledger.
    std::uint64_t samples_digest = 0;
  };
  contributions shards_;
  runtime::body_check body_check_;
  bool finishes_run_ = false;
  runtime::finite_watch finite_;
  /// What the members reduced, while a joiner repeats their steps; and on the GPU, where the plan is.
  struct repeated_gradient {
    collectives::aligned_buffer host{*std::pmr::new_delete_resource()};
    collectives::device_memory gpu;
  };
  repeated_gradient repeated_;
};

} // namespace troupe
