#pragma once

#include "data_plane.hpp"
#include "mutation.hpp"
#include "number_chain.hpp"
#include "packets.hpp"
#include "program.hpp"
#include "staging_stream.hpp"

#include <troupe/actors/decisions/worker_protocol.hpp>
#include <troupe/error.hpp>
#include <troupe/messages.hpp>

#include "worker/life/command_inbox.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace troupe::simulation {

class worker_model;

/// Where a training thread stands between two of its turns.
enum class standing : std::uint8_t {
  starting,
  waiting_to_begin,
  /// Waits for the addresses of the others.
  exchanging,
  connecting,
  agreeing,
  evaluating,
  between_steps,
  reducing,
  /// Has left the reduction with the gradient.
  has_gradient,
  in_barrier,
  /// Has left the barrier, and not committed yet.
  behind_barrier,
  waiting_for_commands,
  saving,
  reporting,
  /// Takes the result of an evaluation that some have missed.
  sharing_evaluation,
  transferring,
  /// A joiner that is given the state while the others train on.
  following,
  finished,
};

std::string_view to_string(standing x) noexcept;

/// What a worker's process needs of the world.
class worker_environment {
 public:
  virtual ~worker_environment() = default;

  virtual random_source& random() = 0;
  virtual mutation defect() const = 0;
  virtual const run_id& run() const = 0;
  virtual const program& training_function() const = 0;
  /// Whether the training function throws here, now.
  virtual bool throws(const worker_model& who, step_id step, program::exception::place where) = 0;
  virtual std::uint64_t checkpoint_every() const = 0;
  /// Whether a rank finds out by itself that a peer's connection is gone.
  virtual bool peers_are_noticed() const = 0;
  virtual void send_to_driver(worker_model& from, packet what) = 0;
  virtual void send_to_store(worker_model& from, packet what) = 0;
  virtual void send_to_collectives(worker_model& from, packet what) = 0;
  /// The ranks of its generation that a worker does not reach over the data network, as far as it has noticed.
  virtual std::vector<rank_id> unreachable_from(const worker_model& who) = 0;
  /// The group that the exchange has brought together.
  virtual std::shared_ptr<data_plane> group_of(const group_place& place, const std::vector<rank_id>& joiners,
                                               const exchange_result& found) = 0;
  virtual std::shared_ptr<staging_stream> stream_of(generation_id generation, std::uint64_t number,
                                                    std::uint32_t sources) = 0;

  // For the checker.
  virtual void stands(worker_model& who, standing where) = 0;
  virtual void has_applied(worker_model& who, const number_chain& before, const number_chain& after) = 0;
  virtual void process_ends(worker_model& who) = 0;
  virtual void skips_loop(worker_model& who) = 0;
  /// A joiner is told what an evaluation of the others has found.
  virtual void knows_evaluation() = 0;
  virtual void violates(const worker_model& who, const std::string& what) = 0;
  virtual void note(const worker_model& who, const std::string& what) = 0;
  virtual bool is_tracing() const = 0;
};

/// One worker process: an actor, whose handlers may run between any two turns of the training thread, and that thread
/// as a state machine. Every decision is the product's `worker_protocol`; this class carries messages to and from it,
/// as the session of a worker process does, and waits for what the thread would wait for. What a thread does between
/// two turns, others cannot tell apart from a single instant.
class worker_model {
 public:
  worker_model(worker_environment& world, worker_id id, std::uint32_t node, flaw has)
      : world_(world), id_(id), node_(node), flaw_(has) {}

  // -- the actor ------------------------------------------------------------------------------------------------------
  void begin(const begin_work& message);
  void abort(const abort_training& message);
  void command(const control_command& message);
  void release();

  // -- the training thread --------------------------------------------------------------------------------------------
  /// Whether it has anything to do; else it waits for others.
  [[nodiscard]] bool can_run() const;
  void run();
  void take(const answer<plan_accepted>& message);
  void take(const answer<next_generation>& message);
  void take(const answer<exchange_result>& message);
  void take(const answer<checkpoint_outcome>& message);

  // -- the process ----------------------------------------------------------------------------------------------------
  /// Its connections break.
  void die();
  [[nodiscard]] worker_id id() const noexcept { return id_; }
  [[nodiscard]] std::uint32_t node() const noexcept { return node_; }
  [[nodiscard]] bool lives() const noexcept { return lives_; }
  void freeze(bool frozen) noexcept { frozen_ = frozen; }
  [[nodiscard]] bool is_frozen() const noexcept { return frozen_; }
  [[nodiscard]] flaw has() const noexcept { return flaw_; }
  /// Changes whenever the thread does anything.
  [[nodiscard]] std::uint64_t progress() const noexcept { return progress_; }

  // -- for the checker ------------------------------------------------------------------------------------------------
  [[nodiscard]] standing stands() const noexcept { return stands_; }
  [[nodiscard]] bool has_state() const noexcept { return protocol_ && protocol_->has_state(); }
  [[nodiscard]] bool is_caught_up() const noexcept { return protocol_ && protocol_->has_caught_up(); }
  [[nodiscard]] step_id committed() const noexcept { return protocol_ ? protocol_->committed() : step_id{}; }
  [[nodiscard]] std::uint64_t evaluations() const noexcept { return protocol_ ? protocol_->evaluations() : 0; }
  [[nodiscard]] step_id reduced() const noexcept { return protocol_ ? protocol_->reduced() : step_id{}; }
  [[nodiscard]] const number_chain& state() const noexcept { return state_; }
  [[nodiscard]] generation_id generation() const noexcept { return place().generation; }
  [[nodiscard]] std::uint32_t attempt() const noexcept { return place().attempt; }
  [[nodiscard]] const std::shared_ptr<data_plane>& group() const noexcept { return group_; }
  [[nodiscard]] rank_id rank() const noexcept { return place().rank; }
  /// The step that its attempt began after.
  [[nodiscard]] step_id restored() const noexcept { return restored_; }
  /// Its training function has ended with an error.
  [[nodiscard]] bool has_failed() const noexcept { return has_failed_; }

 private:
  /// What the thread was doing when its group was lost, and goes on with.
  enum class interrupted : std::uint8_t { joining, agreeing, evaluating, entering, beginning, step, saving, boundary };

  template <class Message>
  void ask(void (worker_environment::*send)(worker_model&, packet), Message message);
  /// Whether this is what the thread waits for.
  bool is_awaited(std::uint64_t number);
  [[nodiscard]] const group_place& place() const noexcept;

  void stand(standing where);
  void join_process();
  void form_communicator();
  void go_to_next_loop();
  void leave_loop();
  void agree();
  void begin_evaluation();
  void leave_evaluation();
  void end_evaluation();
  void check_evaluation(const std::vector<double>& values, step_id step);
  void fail(program::exception::place where, step_id step);
  /// Those that it computes.
  [[nodiscard]] shard_range own_shards() const;
  void begin_step();
  void enter(collective::kind what, collective mine);
  /// Nothing as long as the operation is under way; then whether it has a result.
  std::optional<bool> leave();
  void leave_connect();
  void leave_reduction();
  void enter_barrier();
  void leave_barrier();
  void commit();
  void apply();
  void end_step();
  void save();
  void save_last_copy();
  void act_at_boundary();
  void stage(const actors::stage_state& what);
  void stop_giving();
  void follow();
  void repeat(const staging_stream::gradient& next, step_id latest);
  void leave_stream(bool is_lost);
  void go_on_to_next_step();
  void regroup(interrupted what, const error& reason);
  void report(const error& reason);
  void adopt(const member_place& next);
  void share_last_evaluation();
  void leave_sharing_evaluation();
  void exchange_state();
  void leave_transfer();
  void go_on();
  void finish(error reason, bool needs_restart);
  void lose(interrupted where, const error& reason);

  worker_environment& world_;
  worker_id id_;
  std::uint32_t node_;
  flaw flaw_;
  bool lives_ = true;
  bool frozen_ = false;
  std::optional<abort_training> early_abort_;

  std::optional<actors::worker_protocol> protocol_;
  runtime::command_inbox commands_;
  std::shared_ptr<data_plane> group_;
  /// The communicator was aborted.
  bool cut_off_ = false;
  /// What an abort has found; only for the mutant that reports it.
  std::optional<worker_position::in_step> snapshot_;

  standing stands_ = standing::starting;
  std::uint64_t progress_ = 0;
  bool has_failed_ = false;
  std::uint64_t requests_ = 0;
  std::uint64_t awaited_ = 0;
  interrupted interrupted_ = interrupted::joining;
  bool regrouping_ = false;
  /// The generation that is formed.
  member_place next_;
  /// How many ranks the generation before had; only for the mutant that keeps its ownership.
  std::uint32_t size_before_ = 0;
  /// The step that the attempt began after.
  step_id restored_;
  /// The loop that comes next, or is under way, and the evaluations done before it.
  std::size_t loop_ = 0;
  std::uint32_t evaluations_before_ = 0;
  /// The evaluation that is under way.
  std::uint64_t evaluation_ = 0;
  std::uint64_t gradient_ = 0;
  actors::barrier_words words_;
  /// What is left to do at this boundary, in order.
  std::vector<actors::boundary_action> boundary_;
  bool stop_ = false;
  /// The run ends for this reason, once this worker has saved the state.
  std::optional<error> leaves_;
  /// The training function has thrown this before a reduction.
  std::optional<error> thrown_;
  /// What this worker gives to joiners.
  std::shared_ptr<staging_stream> given_;
  /// Of a joiner that follows the others.
  std::shared_ptr<staging_stream> followed_;
  std::size_t position_ = 0;
  bool has_snapshot_ = false;
  /// The body of the step that it repeats evaluates.
  bool awaits_evaluation_ = false;
  number_chain state_;
};

template <class Message>
void worker_model::ask(void (worker_environment::*send)(worker_model&, packet), Message message) {
  awaited_ = ++requests_;
  (world_.*send)(*this, request<Message>{awaited_, std::move(message)});
}

} // namespace troupe::simulation
