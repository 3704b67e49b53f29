#pragma once

#include "data_plane.hpp"
#include "mutation.hpp"
#include "number_chain.hpp"
#include "packets.hpp"
#include "staging_stream.hpp"

#include <troupe/error.hpp>
#include <troupe/messages.hpp>

#include "worker/command_inbox.hpp"
#include "worker/step_word.hpp"

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
  transferring,
  /// A joiner that is given the state while the others train on.
  following,
  finished,
};

std::string_view to_string(standing x) noexcept;

/// What a worker's process needs of the world.
class surroundings {
 public:
  virtual ~surroundings() = default;

  virtual random_source& random() = 0;
  virtual mutation defect() const = 0;
  virtual const run_id& run() const = 0;
  virtual std::uint64_t steps() const = 0;
  virtual std::uint64_t checkpoint_every() const = 0;
  /// Whether a rank finds out by itself that a peer's connection is gone.
  virtual bool peers_are_noticed() const = 0;
  virtual void send_to_driver(worker_model& from, packet what) = 0;
  virtual void send_to_store(worker_model& from, packet what) = 0;
  virtual void send_to_collectives(worker_model& from, packet what) = 0;
  /// The group that the exchange has brought together.
  virtual std::shared_ptr<data_plane> group_of(const next_generation& place, const exchange_result& found) = 0;
  virtual std::shared_ptr<staging_stream> stream_of(generation_id generation, std::uint64_t number,
                                                    std::uint32_t sources) = 0;

  // For the checker.
  virtual void stands(worker_model& who, standing where) = 0;
  virtual void has_applied(worker_model& who, const number_chain& before, const number_chain& after) = 0;
  virtual void process_ends(worker_model& who) = 0;
  virtual void violates(const worker_model& who, const std::string& what) = 0;
  virtual void note(const worker_model& who, const std::string& what) = 0;
  virtual bool is_tracing() const = 0;
};

/// One worker process, as `train_context::impl` and `process_host` are: an actor, whose handlers may run between any
/// two turns of the training thread, and that thread as a state machine. What a thread does between two turns, others
/// cannot tell apart from a single instant.
class worker_model {
 public:
  worker_model(surroundings& world, worker_id id, std::uint32_t node) : world_(world), id_(id), node_(node) {}

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

  // -- for the checker ------------------------------------------------------------------------------------------------
  [[nodiscard]] standing stands() const noexcept { return stands_; }
  [[nodiscard]] bool has_state() const noexcept { return has_state_; }
  [[nodiscard]] bool is_caught_up() const noexcept { return caught_up_; }
  [[nodiscard]] step_id committed() const noexcept { return committed_; }
  [[nodiscard]] step_id reduced() const noexcept { return reduced_; }
  [[nodiscard]] const number_chain& state() const noexcept { return state_; }
  [[nodiscard]] generation_id generation() const noexcept { return place_.place.generation; }
  [[nodiscard]] std::uint32_t attempt() const noexcept { return place_.place.attempt; }
  [[nodiscard]] const std::shared_ptr<data_plane>& group() const noexcept { return group_; }
  [[nodiscard]] rank_id rank() const noexcept { return place_.place.rank; }

 private:
  /// What the thread was doing when its group was lost, and goes on with.
  enum class interrupted : std::uint8_t { joining, agreeing, entering, beginning, step, saving, boundary };

  template <class Message>
  void ask(void (surroundings::*send)(worker_model&, packet), Message message);
  /// Whether this is what the thread waits for.
  bool is_awaited(std::uint64_t number);

  void stand(standing where);
  void join_process();
  void form_communicator();
  void agree();
  void begin_step();
  void enter(collective::kind what, collective mine);
  /// Nothing as long as the operation is under way; then whether it has a result.
  std::optional<bool> leave();
  void leave_connect();
  void leave_reduction();
  void enter_barrier();
  void leave_barrier();
  void pass();
  void apply();
  void end_step();
  void save();
  void settle_boundary();
  void stage();
  void stop_giving();
  void follow();
  void leave_stream(bool is_caught_up);
  void go_on_to_next_step();
  void regroup(interrupted what, const error& reason);
  void report(const error& reason);
  void adopt(const next_generation& next);
  void exchange_state();
  void leave_transfer();
  void go_on();
  void finish(error reason, bool needs_restart);
  [[nodiscard]] bool is_loss_of_group(const error& reason) const;

  surroundings& world_;
  worker_id id_;
  std::uint32_t node_;
  bool lives_ = true;
  bool frozen_ = false;
  bool begun_ = false;
  std::optional<abort_training> early_abort_;

  runtime::step_word word_;
  runtime::command_inbox commands_;
  std::shared_ptr<data_plane> group_;
  /// The communicator was aborted.
  bool cut_off_ = false;
  generation_id aborted_;
  /// What an abort has found; only for the mutant that reports it.
  std::optional<regroup_report> snapshot_;

  standing stands_ = standing::starting;
  std::uint64_t requests_ = 0;
  std::uint64_t awaited_ = 0;
  next_generation place_;
  interrupted interrupted_ = interrupted::joining;
  bool regrouping_ = false;
  bool has_state_ = false;
  bool between_steps_ = false;
  bool agreed_ = false;
  step_id committed_;
  step_id reduced_;
  std::uint64_t gradient_ = 0;
  std::uint64_t commands_agreed_ = 0;
  std::uint64_t commands_done_ = 0;
  std::uint64_t words_agreed_ = 0;
  bool stop_ = false;
  generation_id regroup_in_;
  /// The last command to stage the state.
  control_command stage_asked_;
  /// What this worker gives to joiners.
  std::shared_ptr<staging_stream> given_;
  /// Of a joiner that follows the others.
  staging_place staging_;
  std::shared_ptr<staging_stream> followed_;
  std::size_t position_ = 0;
  bool has_snapshot_ = false;
  bool told_caught_up_ = false;
  bool caught_up_ = false;
  number_chain state_;
};

} // namespace troupe::simulation
