#pragma once

#include "worker/activity.hpp"
#include "worker/checkpoint_decision.hpp"
#include "worker/command_inbox.hpp"
#include "worker/device_copier.hpp"
#include "worker/driver_client.hpp"
#include "worker/gpu_reduction.hpp"
#include "worker/metrics_pusher.hpp"
#include "worker/quiescence_gate.hpp"
#include "worker/redundant_check.hpp"
#include "worker/snapshot_writer.hpp"
#include "worker/state_stager.hpp"
#include "worker/step_word.hpp"

#include <troupe/collectives/aligned_buffer.hpp>
#include <troupe/collectives/communicator.hpp>
#include <troupe/collectives/device.hpp>
#include <troupe/collectives/device_group.hpp>
#include <troupe/collectives/leaf_accumulator.hpp>
#include <troupe/collectives/nccl_group.hpp>
#include <troupe/collectives/shared_pool.hpp>
#include <troupe/data_order.hpp>
#include <troupe/messages.hpp>
#include <troupe/serialization/checkpoint/reusing_writer.hpp>
#include <troupe/train_context.hpp>

#include <array>
#include <atomic>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>

namespace troupe {

class step_driver;

/// One worker's training, from `begin_training` to its end: what stands behind a `train_context`. The training thread
/// runs everything but `command` and `abort`, which come from an actor's thread.
class train_context::impl {
 public:
  impl(begin_training begin, runtime::driver_client& link);

  /// Forms the communicator and opens the checkpoint to restore. Throws `exception`.
  void prepare();

  /// What to tell the driver once `function` has returned or thrown.
  [[nodiscard]] worker_finished run(const std::function<void(train_context&)>& function);

  // -- from any thread
  // --------------------------------------------------------------------------------------------------
  void command(const control_command& message);
  void abort(const abort_training& message);
  /// What this worker does and whom it waits for, for people.
  [[nodiscard]] std::string describe();
  /// Generation, step and activity of the training thread.
  void fill_in(worker_beat& beat) noexcept;

  // -- for train_context
  // ------------------------------------------------------------------------------------------------
  void for_each_step(step_plan plan, const std::function<void(step&)>& body);
  [[nodiscard]] std::vector<double>
  evaluate(std::uint64_t samples, std::size_t number_of_sums,
           const std::function<void(std::span<const std::uint64_t>, std::span<double>)>& function);
  void report(metric_map values, save_checkpoint checkpoint);
  /// Throws `exception` where there is none: the last was lost, in a function that has a loop of its own.
  [[nodiscard]] collectives::communicator& group();

  /// What a worker that has a GPU opens of it.
  struct opened_gpu {
    std::shared_ptr<collectives::device> device;
    collectives::device_stream stream;
    std::shared_ptr<runtime::device_copier> copier;
  };
  /// Throws `exception` where there is none.
  [[nodiscard]] opened_gpu& gpu();
  /// Where it comes from.
  std::function<expected<std::shared_ptr<collectives::device>>()> open_gpu_ = [] {
    return collectives::open_device(0);
  };
  /// NCCL, as this process finds it, and groups that talk over it.
  struct nccl_access {
    std::function<expected<std::string>()> find = [] { return collectives::find_nccl(); };
    std::function<expected<std::unique_ptr<collectives::device_group>>(
        std::shared_ptr<collectives::device>, collectives::nccl_options, const collectives::address_exchange&)>
        make_group = [](std::shared_ptr<collectives::device> where, collectives::nccl_options options,
                        const collectives::address_exchange& exchange) {
          return collectives::make_nccl_group(std::move(where), std::move(options), exchange);
        };
  };
  nccl_access nccl_;
  /// The group of this generation for buckets in device memory. Formed by the first call, which all ranks make alike.
  /// Throws `exception`.
  [[nodiscard]] collectives::device_group& gpu_group();
  /// Whether it is the one of this generation, and lives.
  [[nodiscard]] bool is_gpu_group(const collectives::device_group& group);
  /// Ends what is under way in the groups of this generation, if there are any.
  void give_up_groups(const error& reason) noexcept;

  /// A collective operation of a training function with a loop of its own. Throws what it returns.
  template <class Call>
  void call_group(Call call) {
    auto scope = runtime::activity::scope{activity_, activity_kind::collective};
    if (auto done = call(group()); !done) {
      lost_in_own_loop_ = lost_in_own_loop_ || is_loss_of_group(done.error());
      throw exception{std::move(done.error())};
    }
  }

  // -- for step_driver
  // --------------------------------------------------------------------------------------------------
  /// The barrier of a step, whose reduced gradient is here: agrees with the other ranks on the commands that take
  /// effect, and on the state. On return the step counts as applied. Throws `exception`.
  void pass_barrier(step_id step);

  /// Whether this error means that the group is gone, and not that the run cannot go on.
  [[nodiscard]] bool is_loss_of_group(const error& reason);
  /// The same of an error that a group in forming has given.
  [[nodiscard]] bool may_form_again(const error& reason);

  /// Reports, waits for the decision and forms the next generation, as often as it takes. On return `committed()` is
  /// what was decided. Nothing of the old generation's is in use any more, but results that were reduced. Throws
  /// `exception` when the run is ending.
  void regroup(error reason);

  /// On a joiner that follows the others: the reduced bucket of the step that it repeats, or what is wrong. Valid
  /// until the next frame is looked at.
  [[nodiscard]] expected<std::span<const std::byte>> gradient_of_others(step_id step);
  /// Whether the others have done steps of this run, and this worker none yet.
  [[nodiscard]] bool is_joiner() const noexcept { return !has_state_; }
  /// Whether the others do not say any more what they do.
  [[nodiscard]] bool has_lost_others() const noexcept { return has_lost_others_; }

  /// While it lives, the training thread leaves the tracked state as it is.
  [[nodiscard]] runtime::quiescence_gate::scope rest() { return {rest_, step_}; }

  /// Every step up to this one counts as applied.
  [[nodiscard]] step_id committed() const noexcept { return committed_; }
  void report_step(step_id step, metric_map values);

  begin_training begin_;
  nlohmann::json config_;
  nlohmann::json options_;
  std::filesystem::path run_directory_;
  tracked_state state_;
  std::uint64_t restored_step_ = 0;
  std::atomic<bool> stop_requested_{false};
  runtime::step_word word_;
  /// The last step whose reduced gradient this rank has got.
  step_id reduced_;
  std::unique_ptr<runtime::metrics_pusher> pusher_;
  runtime::activity activity_;
  /// What the gradient consists of, and what the frameworks' arithmetic depends on: for messages.
  std::vector<gradient_tensor> gradient_tensors_;
  std::string frameworks_;
  /// Gives the state to joiners.
  runtime::state_stager stager_;
  /// When others may read the tracked state.
  runtime::quiescence_gate rest_;

 private:
  void form_communicator();
  [[nodiscard]] std::unique_ptr<collectives::device_group> make_gpu_group();
  void end_gpu_group(std::unique_ptr<collectives::device_group> group);
  /// What is done when the GPU does not let go of this generation's group.
  [[nodiscard]] collectives::hang_policy on_hang();
  /// Makes a checkpoint of the whole state, which nobody else has any more, before this process ends: while the
  /// training thread waits for the group that hangs. From a thread of that group's.
  [[nodiscard]] expected<void> save_last_copy();
  /// NCCL's version, listening where the data plane of this generation does.
  [[nodiscard]] expected<std::string> find_nccl();
  /// Takes the place in a new generation; false if that is over already.
  [[nodiscard]] bool adopt(const next_generation& next);
  [[nodiscard]] error why_it_ends(error otherwise);
  void settle_evaluations(const next_generation& next);
  void exchange_state(const next_generation& next);
  // -- joining.cpp
  void stage_state(step_id step, const control_command& command);
  /// False: it comes too late for this loop.
  [[nodiscard]] bool join(step_driver& driver, const std::function<void(step&)>& body);
  void follow(step_driver& driver, const std::function<void(step&)>& body);
  [[nodiscard]] expected<void> take_staged_state();
  void open_staging();
  void close_staging();
  [[nodiscard]] expected<runtime::staged_frame*> look_at_frame();
  [[nodiscard]] std::vector<double> followed_evaluation();
  void note_pause_at(step_id step);
  [[nodiscard]] const std::vector<double>* evaluation_of_others();
  [[nodiscard]] std::vector<double>
  evaluate_once(std::uint64_t samples, std::size_t number_of_sums,
                const std::function<void(std::span<const std::uint64_t>, std::span<double>)>& function);
  [[nodiscard]] std::chrono::milliseconds group_deadline() const;
  [[nodiscard]] std::unique_ptr<collectives::communicator> make_communicator();
  void open_checkpoint();
  void agree_on(const step_plan& plan);
  void agree_on(run_plan message);
  /// Of the tracked state, as much as this rank compares now.
  [[nodiscard]] std::optional<std::uint64_t> digest_to_compare(step_id step) const;
  void compare_replicas(step_id step);
  /// Does what the commands agreed on at the last barrier ask for; true to go on.
  [[nodiscard]] bool end_of_step(step_id step, bool last);
  // -- checkpoints (checkpointing.cpp)
  [[nodiscard]] runtime::snapshot_writer::destination checkpoint_destination();
  [[nodiscard]] expected<serialization::part_report> write_to_directory(const runtime::staged_part& part,
                                                                        const std::stop_token& stop);
  /// How this worker's parts get to the driver, and how it reads what the driver has.
  void choose_sync();
  [[nodiscard]] bool sees_storage();
  /// Has memory for this rank's share made ready; it changes with the group.
  void prepare_checkpoints();
  /// How many checkpoints this rank has in flight, and whether it knows of one that has to be taken again: for
  /// barriers.
  [[nodiscard]] std::array<std::uint64_t, 2> checkpoint_words();
  void checkpoint_at(step_id step, runtime::checkpoint_boundary at);
  void begin_checkpoint(step_id step);
  /// This rank's part of a checkpoint, but for its bytes.
  [[nodiscard]] checkpoint_part describe_part(step_id step) const;
  /// Returns once it is durable or given up; `must` says that nothing comes after it.
  void finish_checkpoint(step_id step, bool must);
  void wait_for_checkpoints(const runtime::checkpoint_boundary& at);
  void report_with_checkpoint(step_id step);
  /// Returns once nothing is in flight. Throws `exception` if any of it was overtaken.
  void await_checkpoints();
  [[nodiscard]] std::uint64_t micros() const;

  runtime::driver_client& link_;
  runtime::command_inbox commands_;
  std::uint64_t commands_done_ = 0;
  std::uint64_t commands_agreed_ = 0;
  /// Memory that the other workers of this host can read: for the life of the process.
  std::shared_ptr<collectives::shared_pool> pool_;
  std::mutex communicator_mutex_;
  std::unique_ptr<collectives::communicator> communicator_;
  std::optional<opened_gpu> gpu_;
  /// Of the same generation; null until it is needed.
  std::unique_ptr<collectives::device_group> gpu_group_;
  /// That of the generation before, if it had connections of its own.
  std::unique_ptr<collectives::device_group> gpu_predecessor_;
  /// What NCCL was told to listen on when it was first opened.
  std::optional<std::string> nccl_interface_;
  /// The exchanges over the control plane that groups of GPUs have made in this generation.
  std::uint64_t gpu_exchanges_ = 0;
  /// Set where parts are streamed: used from the snapshot writer's thread.
  std::shared_ptr<runtime::part_stream> part_stream_;
  /// Set from the beginning, and used from the same thread.
  serialization::reusing_writer part_writer_;
  /// Ends, with its thread, before what its thread uses.
  std::unique_ptr<runtime::snapshot_writer> snapshots_;
  /// A checkpoint was postponed, or overtaken by the end of its generation.
  bool checkpoint_owed_ = false;
  /// Somebody has asked for a checkpoint in this generation, and it is not known yet that it is durable.
  bool asked_open_ = false;
  /// What was last begun in this generation takes the place of one that was overtaken.
  bool retrying_ = false;
  /// What the last barrier agreed on, and in which generation.
  generation_id agreed_in_;
  std::uint64_t in_flight_agreed_ = 0;
  bool owed_agreed_ = false;
  /// Of `begin_`, for other threads.
  generation_id generation_;
  /// The last generation that is known to be over, and why.
  generation_id aborted_;
  std::optional<error> abort_reason_;
  std::stop_source cancel_forming_;
  /// Groups that could not be formed since the last step.
  int failed_formings_ = 0;
  static constexpr int most_failed_formings = 5;
  /// The last step whose body has returned.
  step_id step_;
  step_id committed_;
  std::uint64_t evaluations_ = 0;
  std::vector<double> last_evaluation_;
  /// Whether this worker has the run's state: a joiner has none until the others give it.
  bool has_state_ = true;
  /// The staging group that this joiner has a place in; number 0 for none.
  staging_place staging_;
  /// Set while it follows the others; changed under `communicator_mutex_`.
  std::unique_ptr<runtime::staged_state> followed_;
  /// The others have the loop behind them that this joiner has come to.
  bool skips_loop_ = false;
  /// The end of the group before.
  std::future<void> closing_;
  /// What comes next from the others, if it is here.
  std::optional<runtime::staged_frame> frame_;
  bool has_lost_others_ = false;
  /// How long it took to repeat the last step, once it has.
  std::optional<std::chrono::steady_clock::duration> repeat_took_;
  bool told_caught_up_ = false;
  /// Whether it has come to a boundary of the others, with their state.
  bool caught_up_ = false;
  /// Whether a loss now finds this worker where joiners can be let in.
  bool between_steps_ = false;
  /// The loops of the training function that have begun, and the evaluations since.
  std::uint32_t loops_ = 0;
  bool in_loop_ = false;
  std::vector<std::vector<double>> evaluations_before_loop_;
  std::chrono::steady_clock::time_point last_pass_ = std::chrono::steady_clock::now();
  /// When the last step before the group was lost was committed.
  std::optional<std::chrono::steady_clock::time_point> pause_began_;
  /// A loop of the training function's own has lost its group.
  bool lost_in_own_loop_ = false;
  /// At the next barrier.
  state_comparison comparison_ = state_comparison::whole;
  bool stopped_ = false;
  bool agreed_ = false;
  /// Whether the training function has a loop of its own, and reports.
  bool custom_loop_ = false;
  metric_map last_metrics_;
  /// Identity of the state at the end of the steps; empty in a custom loop.
  std::string state_sha256_;
  std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
};

/// Leaves the training function of a worker that is not needed any more. Not for the user's handlers, so of no standard
/// type.
struct worker_released {};

/// Leaves the body of a step that is to be computed again. Not for the user's handlers, so of no standard type.
struct step_interrupted {};

/// Runs one step after the other: contributions, reduction, barrier, application; again where the group was lost before
/// the step was commit_point.
class step_driver {
 public:
  step_driver(train_context::impl& context, const step_plan& plan);
  ~step_driver();

  void run(step_id id, const std::function<void(step&)>& body);

  /// On a joiner: runs the body of a step that the others have committed, without shards, so that it applies what they
  /// have reduced. False if they do not say what that is any more: the step is as if it had not begun, but for the
  /// tracked state.
  [[nodiscard]] bool repeat(step_id id, const std::function<void(step&)>& body);

  // -- for step and shard
  // -----------------------------------------------------------------------------------------------
  void open_shard(shard& target, shard_id id);
  /// The shard that this rank computes only to be compared.
  void open_shard_again(shard& target);
  void mark_ready(const shard& which, std::uint64_t first, std::uint64_t count);
  std::span<const float> all_reduce();
  std::span<const float> all_reduce_on_gpu();
  [[nodiscard]] double metric(std::size_t index) const;

  /// How many shards were computed twice, with equal bits, and how many of them by another rank.
  [[nodiscard]] std::uint64_t checked_shards() const noexcept { return checked_shards_; }
  [[nodiscard]] std::uint64_t checked_elsewhere() const noexcept { return checked_elsewhere_; }

  train_context::impl& context_;
  const step_plan& plan_;

 private:
  friend class step;
  friend class shard;
  friend class shard_list;

  /// What depends on the membership.
  void adopt_generation();
  [[nodiscard]] bool try_to_adopt();
  [[nodiscard]] std::vector<collectives::byte_range> parts() const;
  [[nodiscard]] std::size_t started() const;
  /// Throws `exception` unless the body may reduce now. Returns once the step counts.
  void settle_step();
  void take_from_others();
  void hand_to_joiners();
  void leave_if_regrouped();
  void lose_group(error reason);
  void try_body(const std::function<void(step&)>& body);
  void run_body(const std::function<void(step&)>& body);
  void reduce();
  void end_started_calls();
  void check_untouched() const;
  // -- shards that are computed twice
  void fill(shard& target, shard_id id, std::span<std::byte> bucket);
  void keep_first_result();
  [[nodiscard]] std::span<std::byte> second_bucket();
  [[nodiscard]] std::span<std::byte> second_bucket_on_gpu();
  void keep_second_result();
  [[nodiscard]] bool computes_again() const;
  /// Every rank compares what the two have found. Throws `exception` with `errc::mismatch` where it differs.
  void compare_results();
  [[nodiscard]] std::span<const std::byte> result_part(std::span<const std::byte> bucket, std::size_t part) const;
  [[nodiscard]] std::vector<std::byte>
  both_results(const std::function<void(std::span<const std::byte>, std::vector<std::byte>&)>& take) const;
  /// Starts the reduction of the parts whose contributions are in, from the last part to the first.
  void start_complete_parts();
  void start_next_part();
  [[nodiscard]] std::size_t part_at(std::size_t turn) const;
  expected<void> reduce_part(std::size_t part);
  /// The sum of this rank's shards, where the order does not matter.
  std::span<const std::byte> add_up_partials(collectives::byte_range part);

  data_order order_;
  std::optional<collectives::leaf_accumulator> sums_;
  /// The gradient's parts, and behind them the metrics' (or all in one, where the gradient is short).
  std::unique_ptr<collectives::reduced_bucket> result_;
  /// Of the last shard, the elements that are complete, by part.
  std::vector<std::uint64_t> complete_;
  std::vector<collectives::pending_call> started_;
  /// Instead of the above, where the plan is on the GPU.
  std::unique_ptr<runtime::gpu_reduction> on_gpu_;
  collectives::device_memory gpu_repeated_;
  /// The metrics of what was reduced there.
  std::vector<double> gpu_metrics_;
  collectives::aligned_buffer added_{*std::pmr::new_delete_resource()};
  /// What the others have reduced, while their steps are repeated.
  collectives::aligned_buffer repeated_{*std::pmr::new_delete_resource()};
  bool repeating_ = false;
  /// The shard of this step that is computed twice; what its owner has found, while it is written and then as a copy,
  /// and what the other has.
  std::optional<runtime::redundant_check> redundant_;
  std::span<const std::byte> first_result_open_;
  collectives::aligned_buffer first_result_{*std::pmr::new_delete_resource()};
  collectives::aligned_buffer second_result_{*std::pmr::new_delete_resource()};
  /// Where the other writes, where the plan is on the GPU.
  collectives::device_memory second_on_gpu_;
  bool computed_again_ = false;
  std::vector<gradient_tensor> compared_parts_;
  std::uint64_t checked_shards_ = 0;
  std::uint64_t checked_elsewhere_ = 0;
  std::vector<std::uint64_t> samples_;
  /// Of what the shards of this try were given, for the ledger.
  std::uint64_t samples_digest_ = 0;
  shard_range range_;
  std::uint32_t next_shard_ = 0;
  bool reduced_ = false;
  bool interrupted_ = false;
  /// Of what lies here; none at first.
  generation_id generation_;
  bool check_;
  /// Of the parts of the tracked state when the step began.
  std::vector<std::uint64_t> digests_before_;
  step step_;
};

} // namespace troupe
