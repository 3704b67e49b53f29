#pragma once

#include "mutation.hpp"
#include "packets.hpp"
#include "tally.hpp"

#include <troupe/actors/decisions/exchange_table.hpp>
#include <troupe/actors/decisions/journal_gate.hpp>
#include <troupe/actors/decisions/run_coordinator.hpp>

#include <troupe/actors/decisions/run_layout.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe::simulation {

/// Another driver may have started so many workers since the journal was written last.
constexpr std::uint32_t spare_worker_ids = 64;

/// What the driver asks to be reminded of.
enum class reminder : std::uint8_t { tick, start, drain, hold, grace };

/// What the driver's process needs of the world.
class driver_environment {
 public:
  virtual ~driver_environment() = default;

  virtual random_source& random() = 0;
  virtual mutation defect() const = 0;
  virtual const run_id& run() const = 0;
  /// Whether drivers leave a journal.
  virtual bool keeps_journal() const = 0;
  virtual actors::run_coordinator::time clock() const = 0;
  virtual void send_to_actor(worker_id worker, packet what) = 0;
  virtual void send_to_thread(worker_id worker, packet what) = 0;
  virtual void send_to_node(std::uint32_t node, packet what) = 0;
  /// From another actor of the driver's process.
  virtual void send_to_driver_itself(packet what) = 0;
  virtual void remind(reminder what) = 0;
  /// What a worker's last beat has told, if it still sends any.
  virtual std::optional<worker_beat> beat_of(worker_id worker) = 0;
  /// The workers of a node that it finds silent, and why; nothing if it does not reach the driver.
  virtual std::optional<std::vector<silent_worker>> silent_workers_of(std::uint32_t node) = 0;

  // For the checker.
  virtual void count(branch what) = 0;
  virtual void violate(const std::string& what) = 0;
  virtual void note(const std::string& what) = 0;
  virtual bool is_tracing() const = 0;
  virtual void forms(const actors::form_generation& next) = 0;
  virtual void restarts() = 0;
  /// The driver goes on, in the attempt that has begun last, without a node that has said nothing for so long.
  virtual void gives_up(std::uint32_t node, std::uint32_t attempt, std::chrono::steady_clock::duration silent_for) = 0;
  /// The same of a worker.
  virtual void gives_up(worker_id worker, std::uint32_t attempt, std::chrono::steady_clock::duration silent_for) = 0;
  /// A stop is sent to the workers.
  virtual void tells_to_stop(const std::vector<worker_id>& whom) = 0;
  virtual void concludes(const actors::conclude& end, const std::string& why) = 0;
  /// What a worker's process would report now, to one that does not wait for its report.
  virtual std::optional<regroup_report> guess_report_of(worker_id worker) = 0;
};

/// The checkpoint store's actor: parts of one generation make a checkpoint; parts of older ones are refused.
class store_model {
 public:
  explicit store_model(driver_environment& world) : world_(world) {}

  void begin(generation_id generation);
  void add(worker_id from, const request<state_part>& part);

  [[nodiscard]] const std::optional<number_chain>& latest() const noexcept { return latest_; }
  /// What is on the device outlives the driver.
  void find(const store_model& before) {
    latest_ = before.latest_;
    on_device_ = before.on_device_;
  }

 private:
  struct attempt {
    std::map<rank_id, state_part> parts;
    std::vector<std::pair<worker_id, std::uint64_t>> waiting;
  };

  void commit(const attempt& whole);
  void reply(worker_id to, std::uint64_t number, step_id step);

  driver_environment& world_;
  generation_id generation_;
  /// The last that was begun, whatever the store makes of it.
  generation_id truly_begun_;
  std::map<std::pair<generation_id, step_id>, attempt> pending_;
  std::set<std::pair<generation_id, step_id>> written_;
  std::set<step_id> on_device_;
  std::optional<number_chain> latest_;
};

/// The collectives actor around the product's table.
class collectives_model {
 public:
  explicit collectives_model(driver_environment& world) : world_(world) {}

  void begin(const generation_started& message);
  void exchange(worker_id from, request<exchange_request> message);
  void end(const exchange_ended& message);

 private:
  driver_environment& world_;
  actors::exchange_table table_;
  /// By sequence number.
  std::map<std::uint64_t, std::vector<std::pair<worker_id, std::uint64_t>>> waiting_;
};

/// What a driver leaves to the next.
struct journal_model {
  actors::control_state state;
  /// No worker has this id or a greater one.
  std::uint32_t next_worker = 0;
};

/// The driver's process: the product's coordinator, and around it what the trainer does: it carries messages, knows the
/// nodes, answers requests.
class driver_model {
 public:
  /// `nodes` that are open.
  driver_model(driver_environment& world, const actors::run_coordinator::settings& settings, std::uint32_t nodes);
  /// Another driver of the same run, after the end of `before`. `living`: the processes on the nodes that answer.
  driver_model(const driver_model& before, const actors::run_coordinator::settings& settings,
               const std::map<std::uint32_t, std::vector<worker_beat>>& living);

  /// Starts the processes of the first attempt.
  void begin();
  /// Takes the run over.
  void go_on(const std::map<std::uint32_t, std::vector<worker_beat>>& living);
  /// Whether another driver finds members in the journal, also if what is being written gets there.
  [[nodiscard]] bool leaves_members() const noexcept {
    return journal_ && !journal_->state.members.empty() && (!being_written_ || !being_written_->state.members.empty());
  }
  void end_while_writing(bool is_written);

  // -- from workers ---------------------------------------------------------------------------------------------------
  void take(const worker_ready& message);
  void take(const request<run_plan>& message);
  void take(const request<regroup_report>& message);
  void take(const caught_up& message);
  void take(const worker_finished& message);
  [[nodiscard]] store_model& store() noexcept { return store_; }
  [[nodiscard]] collectives_model& collectives() noexcept { return collectives_; }

  // -- from nodes -----------------------------------------------------------------------------------------------------
  void take(const worker_ended& message);
  void node_speaks(std::uint32_t node);
  void node_goes(std::uint32_t node);
  void node_opens(std::uint32_t node);
  void connection_lost(std::uint32_t node);
  /// It has said nothing for too long.
  void node_is_silent(std::uint32_t node);
  void workers_are_silent(std::uint32_t node, const std::vector<silent_worker>& workers);

  // -- from users, and the clock --------------------------------------------------------------------------------------
  void ask(actors::run_actions (actors::run_coordinator::*what)());
  void resize(std::uint32_t workers);
  void stop(stop_request what);
  /// No rank has moved for long.
  void group_hangs();
  void reached(reminder what);
  void metadata_is_stored(generation_id generation);
  void attempt_is_closed(std::uint32_t attempt);
  void journal_is_written();
  void node_claimed(std::uint32_t node, const std::vector<worker_beat>& living);

  [[nodiscard]] const actors::run_coordinator& coordinator() const noexcept { return coordinator_; }
  /// Whether the run fails or all is done: what is left of it has a grace period to end.
  [[nodiscard]] bool is_in_grace() const noexcept {
    return !coordinator_.starting() && !coordinator_.goes_on() && !coordinator_.over();
  }
  [[nodiscard]] bool has_concluded() const noexcept { return concluded_; }
  [[nodiscard]] bool is_fenced(std::uint32_t node) const { return nodes_[node] == node_state::fenced; }
  [[nodiscard]] bool is_silent(std::uint32_t node) const { return silent_.contains(node); }
  [[nodiscard]] bool is_silent(worker_id worker) const { return silent_workers_.contains(worker); }
  [[nodiscard]] bool is_away(std::uint32_t node) const { return nodes_[node] == node_state::away; }
  /// Whether the coordinator was told that this worker is lost, or has sent it away, or it is of an attempt that is
  /// over.
  [[nodiscard]] bool is_given_up(worker_id worker) const;
  /// Of any attempt: whether its end was told, or it was sent away.
  [[nodiscard]] bool is_told_lost(worker_id worker) const { return given_up_[worker.value]; }
  /// Whether it was released although it has not finished.
  /// It has failed, and does not save its state, because others have it.
  [[nodiscard]] bool is_let_go(worker_id worker) const { return let_go_[worker.value]; }
  [[nodiscard]] bool is_sent_away(worker_id worker) const { return sent_away_[worker.value]; }
  /// Whether it is a member, or was one when it was lost or released.
  [[nodiscard]] bool was_member(worker_id worker) const { return was_member_[worker.value]; }
  /// Whether it has said so in its last report: it may have been a joiner again.
  [[nodiscard]] bool was_without_state(worker_id worker) const {
    const auto said = last_reports_.find(worker);
    return said != last_reports_.end() && said->second.is<worker_position::without_state>();
  }
  /// The furthest step of the run when its failure with this index was recorded.
  [[nodiscard]] step_id furthest_at_failure(std::size_t index) const { return furthest_at_failures_[index]; }
  /// Those that had the state when the run began to fail, and reported in time: what each had committed.
  [[nodiscard]] const std::map<worker_id, step_id>& waiting_at_the_end() const noexcept { return waiting_at_the_end_; }
  /// Whose training function has returned in this attempt.
  [[nodiscard]] const std::set<worker_id>& returned() const noexcept { return returned_; }
  [[nodiscard]] const store_model& store() const noexcept { return store_; }
  [[nodiscard]] const std::vector<actors::worker_place>& places() const noexcept { return layout_.places(); }

 private:
  enum class node_state : std::uint8_t { open, leaving, away, fenced };

  void act(const actors::run_actions& actions);
  void carry_out(const actors::run_actions& actions);
  void carry_out_what_is_kept();
  [[nodiscard]] actors::control_state kept_state() const;
  void write_journal();
  void end_missing(std::uint32_t node, const std::vector<worker_beat>& living);
  /// To a worker's actor. What is for one of another driver's waits until that has said that it is there.
  void tell(worker_id worker, packet what);
  void check(const actors::run_action& action);
  void check(const actors::form_generation& next);
  void send(const actors::send_command& what);
  void abort_everybody(const error& reason);
  void end_waits_of(generation_id generation);
  void note_who_waits_at_the_end(const actors::run_actions& actions);
  void release_everybody();
  void warn_of(const std::string& why);
  /// As `act`; nothing but a refusal may come of what a stale member says.
  void act_on_speaker(bool is_stale, const actors::run_actions& actions);
  void lay_out(std::vector<actors::worker_place> places);
  void start(const std::vector<actors::worker_place>& places);
  void begin_all_workers();
  void begin_joiner_of(const actors::begin_joiner& joiner);
  [[nodiscard]] begin_work begin_message() const;
  [[nodiscard]] generation_started generation_now() const;
  void answer_plans(const expected<plan_accepted>& what);
  void answer_plans_of(generation_id generation, const expected<plan_accepted>& what);
  void answer_plan(worker_id worker, const expected<plan_accepted>& what);
  void answer_report(worker_id worker, const expected<next_generation>& what);
  template <class Reply>
  void give(std::map<worker_id, answer<Reply>>& memory, worker_id worker, answer<Reply> what);
  /// Whether it was answered before, and is again.
  template <class Request, class Reply>
  bool answers_again(const std::map<worker_id, answer<Reply>>& memory, const request<Request>& message);
  void abort_workers(generation_id generation, const error& reason);
  void fail_pending(const error& reason);
  void form(const actors::form_generation& next);
  void stage_state(const actors::stage_joiners& group);
  void start_additional(std::uint32_t count);
  void restart();
  void place_again();
  void has_capacity();
  void give_up(std::uint32_t node);
  void leave_behind(std::uint32_t node);
  void lose_node(std::uint32_t node, const std::string& why);
  [[nodiscard]] std::optional<std::uint32_t> emptiest_node(const std::vector<actors::worker_place>& more) const;
  void guess_missing_reports();

  driver_environment& world_;
  actors::run_coordinator coordinator_;
  store_model store_;
  collectives_model collectives_;
  actors::run_layout layout_;
  std::vector<node_state> nodes_;
  /// Since when each says nothing that has not been given up.
  std::map<std::uint32_t, actors::run_coordinator::time> silent_;
  /// Since when each does not run that has not been given up.
  std::map<worker_id, actors::run_coordinator::time> silent_workers_;
  std::uint32_t first_size_;
  std::uint32_t known_ = 0;
  /// Whom messages reach.
  std::vector<worker_id> workers_;
  std::map<worker_id, std::uint32_t> where_;
  std::vector<bool> given_up_;
  std::vector<bool> sent_away_;
  std::vector<bool> let_go_;
  std::vector<bool> was_member_;
  std::vector<control_command> commands_;
  struct waiting_plan {
    std::uint64_t number = 0;
    generation_id generation;
  };
  std::map<worker_id, waiting_plan> plans_;
  std::map<worker_id, std::uint64_t> reports_;
  /// The last answers. Who asks again gets the same.
  std::map<worker_id, answer<plan_accepted>> answered_plans_;
  std::map<worker_id, answer<next_generation>> answered_reports_;
  /// Only for the mutant that does not wait for reports.
  std::map<worker_id, next_generation> owed_;
  /// Who follows the others.
  std::set<worker_id> staged_;
  std::optional<number_chain> restored_;
  bool awaiting_capacity_ = false;
  bool grace_running_ = false;
  bool concluded_ = false;

  actors::journal_gate gate_;
  std::optional<journal_model> journal_;
  std::optional<journal_model> being_written_;
  /// What is for workers that this driver has not heard of yet.
  std::map<worker_id, std::vector<packet>> unsent_;
  /// Who was a member before this driver.
  std::set<worker_id> inherited_;
  /// Whether the generation is one that this driver has formed.
  bool has_formed_ = true;

  // For the checker.
  /// The last that each worker has said, as it was said.
  std::map<worker_id, regroup_report> last_reports_;
  std::set<worker_id> returned_;
  /// By failure: the furthest step when it was recorded.
  std::vector<step_id> furthest_at_failures_;
  generation_id last_formed_;
  /// The attempt that was to begin last, and the one whose workers were told so.
  std::uint32_t last_decided_ = 0;
  std::uint32_t last_begun_ = 0;
  std::map<worker_id, step_id> waiting_at_the_end_;
  bool aborted_all_ = false;
  bool released_all_ = false;
};

template <class Reply>
void driver_model::give(std::map<worker_id, answer<Reply>>& memory, worker_id worker, answer<Reply> what) {
  memory.insert_or_assign(worker, what);
  world_.send_to_thread(worker, std::move(what));
}

template <class Request, class Reply>
bool driver_model::answers_again(const std::map<worker_id, answer<Reply>>& memory, const request<Request>& message) {
  const auto known = memory.find(message.message.worker);
  if (known == memory.end() || known->second.number != message.number || world_.defect() == mutation::forgets_answers)
    return false;
  world_.send_to_thread(message.message.worker, known->second);
  return true;
}

} // namespace troupe::simulation
