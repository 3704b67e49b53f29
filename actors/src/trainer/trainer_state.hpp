#pragma once

#include "orderly_end.hpp"
#include "trainer/control_journal.hpp"
#include "trainer/interface.hpp"
#include "trainer/node_discovery.hpp"
#include "trainer/run_audience.hpp"
#include "trainer/run_events.hpp"
#include "trainer/run_files.hpp"
#include "trainer/run_nodes.hpp"
#include "trainer/run_workers.hpp"
#include "trainer/severity.hpp"
#include <troupe/actors/decisions/hang.hpp>
#include <troupe/actors/decisions/journal_gate.hpp>
#include <troupe/actors/decisions/placement.hpp>
#include <troupe/actors/decisions/run_condition.hpp>
#include <troupe/actors/decisions/run_coordinator.hpp>
#include <troupe/actors/decisions/run_layout.hpp>
#include <troupe/actors/decisions/run_record.hpp>
#include <troupe/actors/trainer.hpp>
#include <troupe/config.hpp>

#include <caf/all.hpp>

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::actors {

/// The phases of the trainer. In `running`, the coordinator decides about members.
namespace trainer_phase {

struct idle {};

/// Looks for a run of a previous driver.
struct looking {};

/// A previous driver's run exists: asks its nodes for its workers.
struct claiming_workers {
  /// With nodes as indices into the roster.
  run_journal journal;
  std::chrono::steady_clock::time_point since;
  /// The nodes that may have its workers and have not answered.
  std::set<std::uint32_t> awaited;
  /// By node.
  std::map<std::uint32_t, std::vector<worker_beat>> living = {};
  /// The last notice about what is missing.
  std::string announced = {};
};

/// It waits until enough nodes have made an offer.
struct gathering {
  /// The last notice about what is missing.
  std::string announced = {};
  /// Set while others have resources that the run needs: when to ask the nodes again.
  std::optional<std::chrono::steady_clock::time_point> ask_again = {};
};

/// The nodes are asked for the resources of these places.
struct leasing {
  std::vector<worker_place> places;
  /// As in `gathering`.
  std::string announced;
};

/// The run's directory is being claimed.
struct claiming {};

/// The nodes open the program.
struct opening {
  /// Nodes that are going away: the run begins on them, then moves its workers elsewhere.
  std::set<std::uint32_t> leaving = {};
  /// Whether other nodes are asked for resources, in place of one that cannot open the program.
  bool is_moving = false;
};

struct running {
  /// Nodes to leave once the workers of the first attempt have begun.
  std::set<std::uint32_t> leaving;
};

/// All workers with the state are lost: looks for the latest checkpoint.
struct finding_state {
  /// The last notice about the obstacle.
  std::string announced;
};

/// The run restarts as soon as there is capacity.
struct awaiting_capacity {
  /// The last notice about what is missing.
  std::string announced;
};

/// The run ends on the nodes, and its result is written.
struct concluding {};

} // namespace trainer_phase

/// The trainer's actor: carries messages between users, nodes, workers and files on one side and the decisions on the
/// other. The decisions are the `run_coordinator`'s; the conversations with nodes are in `run_nodes`, those with
/// workers in `run_workers`. No handler waits for anything; `let_go` waits for the run's files. Its functions are in
/// trainer.cpp (messages from nodes and workers, and the end), steering.cpp (what users ask), takeover.cpp (the run of
/// a driver that has ended, and the journal for the next), starting.cpp (on which nodes the run starts, first and
/// again) and actions.cpp (what the coordinator wants done).
class trainer_state : public orderly_end<trainer_base>, private node_events {
 public:
  trainer_state(caf::actor_config& cfg, std::string function, trainer_config config, trainer_services services);

  behavior_type make_behavior() override;
  const char* name() const override { return "troupe.trainer"; }

 private:
  void let_go() override;

  template <class Phase>
  [[nodiscard]] bool is() const noexcept {
    return std::holds_alternative<Phase>(phase_);
  }
  /// Whether processes of the run have been started.
  [[nodiscard]] bool has_begun() const noexcept {
    return is<trainer_phase::running>() || is<trainer_phase::finding_state>() || is<trainer_phase::awaiting_capacity>();
  }
  [[nodiscard]] bool is_concluding() const noexcept { return is<trainer_phase::concluding>(); }
  /// Whether a message is for this run, and may still change it.
  [[nodiscard]] bool is_of_run(const run_id& run) const {
    return coordinator_ && run == record_.run() && !is_concluding();
  }

  /// Calls `react` later, unless the run is ending by then.
  template <class Reaction>
  void after(std::chrono::milliseconds delay, Reaction react) {
    run_delayed(delay, [this, react = std::move(react)]() mutable {
      if (!is_concluding())
        react();
    });
  }
  /// As above, unless another attempt has begun by then.
  template <class Reaction>
  void after_in_attempt(std::chrono::milliseconds delay, Reaction react) {
    after(delay, [this, react = std::move(react), attempt = coordinator_->attempt()]() mutable {
      if (attempt == coordinator_->attempt())
        react();
    });
  }
  /// As above, unless another generation has begun by then.
  template <class Reaction>
  void after_in_generation(std::chrono::milliseconds delay, Reaction react) {
    after(delay, [this, react = std::move(react), generation = coordinator_->generation()]() mutable {
      if (generation == coordinator_->generation())
        react();
    });
  }

  template <class Event>
  void publish(const Event& event) {
    if (auto line = event_of(event))
      record_event(std::move(*line));
    audience_.publish(*this, event);
    if (monitor_)
      monitor_->on(run_event{event});
  }
  void notify(severity how, std::string text) override {
    publish(run_notice{record_.run(), how == severity::warning, std::move(text)});
  }
  /// For events.jsonl.
  void record_event(nlohmann::ordered_json what);
  void record_new_failures();
  /// Opens what passes the run on to other systems.
  [[nodiscard]] expected<void> open_monitor();
  /// Says how the run stands, to those systems and from time to time in its events.
  void pulse(std::chrono::steady_clock::time_point now);
  /// Notifies users, unless `last` says the same.
  void announce(std::string& last, std::string text);

  // trainer.cpp
  caf::result<run_result> fit();
  void stop_in_time();
  caf::result<void> ready(const worker_ready& message, const worker_actor& worker);
  caf::result<plan_accepted> agree(const run_plan& plan);
  caf::result<next_generation> report(const regroup_report& message);
  caf::result<void> take_metrics(const metrics_batch& batch);
  void finished(const worker_finished& message);
  void ended(const worker_ended& message);
  void note_death_on(std::uint32_t node);
  caf::result<void> show(worker_output output);
  /// Answers the sender when the message is written, as back pressure.
  template <class Message>
  caf::result<void> hand_to_files(Message message);
  void checkpointed(const checkpoint_outcome& outcome);
  void skipped(step_id step);
  void warn_not_finite(const metrics_batch& batch);
  void take_beat(const node_beat& beat);
  void tick();
  void deal_with(const hang_finding& finding);
  /// Asks one worker, or all if none is at fault.
  void ask_what_they_do(std::optional<worker_id> one);
  void conclude_run(run_status status, error reason);
  /// Explains to a user who repeats a command why nothing happens.
  void tell_if_nothing_was_left();
  void deliver(const run_result& result);

  // steering.cpp
  caf::result<void> stop(const stop_request& request);
  void begin_stop(const stop_request& request);
  void tell_whom_a_stop_waits_for();
  caf::result<void> resize(const resize_request& request);
  caf::result<void> grant(actors::run_actions (run_coordinator::*decide)(), std::string_view what);
  /// Whoever asked gets what the coordinator only warns of as an error, too.
  caf::result<void> do_or_refuse(actors::run_actions actions, std::string_view what);
  /// Whoever asked is answered once another driver would know of it.
  caf::result<void> answer_when_kept();
  void answer_wishes();
  [[nodiscard]] run_condition condition() const;
  [[nodiscard]] run_activity activity() const;

  // takeover.cpp
  [[nodiscard]] bool keeps_journal() const;
  void look_for_run();
  void gather();
  void claim_workers(directory_taken_over& found);
  void on_node_claimed(std::uint32_t node, const std::vector<worker_beat>& living) override;
  /// Takes over or begins anew, once it is known whether workers live.
  void decide_takeover();
  void take_over();
  void begin_anew();
  /// Reports the ends of members that ended while the run had no driver.
  void end_missing(std::uint32_t node, const std::vector<worker_beat>& living);
  void on_superseded() override;
  /// Starts writing the journal if its content has changed.
  void write_journal();
  [[nodiscard]] run_journal journal_of(control_state state) const;
  /// The message with which nodes open the run.
  [[nodiscard]] run_nodes::opening opening() const;

  // starting.cpp
  void on_node_answered() override { place_first(); }
  void on_node_open(std::uint32_t node) override;
  void on_nodes_silent(const std::map<std::uint32_t, std::string>& nodes) override;
  void on_node_answers(std::uint32_t node) override;
  void on_node_lost(std::uint32_t node, const std::string& why) override;
  void use_capacity();
  /// A cluster's other members may take its workers.
  void on_node_missing(error reason) override;
  [[nodiscard]] bool needs_node(std::uint32_t node, bool is_late) const override;
  void node_leaves(const node_leaving& message);
  void node_drains(const node_drained& message);
  void node_resumes(const node_resumed& message);
  /// Its workers are to go within this time, with or without replacements.
  void leave_node(std::uint32_t node, std::chrono::milliseconds patience);
  void act_on_leaving(std::uint32_t node);
  /// The nodes that the run may use, or why they are not known.
  void take_nodes(const nodes_found& answer);
  /// The node is named no more.
  void leave_unnamed(std::uint32_t node);
  /// The node takes workers of this run again.
  void use_again(std::uint32_t node);
  /// Why a run that discovers its nodes has none.
  [[nodiscard]] error no_nodes() const;
  [[nodiscard]] std::vector<node_capacity> capacities() const;
  /// Begins if enough nodes have made an offer.
  void place_first();
  void lease(std::vector<worker_place> places, std::string announced);
  void on_leased(const expected<void>& granted);
  /// Others have resources that the run needs: it waits, if the configuration allows that.
  void wait_for_resources(trainer_phase::gathering& phase, error why);
  /// How the nodes know a run that leases resources, or waits for them.
  [[nodiscard]] waiting_run lessee() const;
  void begin_with(std::vector<worker_place> places);
  void begin_in(claimed_directory& claimed);
  void begin_from(starting_state state);
  /// Before processes are started: the workers have these places now.
  void move_to(std::vector<worker_place> places);
  /// Starts the processes of the first attempt if all their nodes have opened the program.
  void start_first();
  /// `lay_out` for the first attempt. Ends the run, and returns false, if it cannot have these places.
  [[nodiscard]] bool lay_out_first(std::vector<worker_place> places);
  /// Makes a coordinator for the workers in these places.
  void coordinate();
  /// Sets the places of the workers and chooses the transport of their gradients.
  expected<void> lay_out(std::vector<worker_place> places);
  /// Starts processes in these places. The coordinator knows of them.
  void start(const std::vector<worker_place>& places);
  void not_started(std::uint32_t node, const std::vector<worker_launch>& workers, const error& reason);
  /// As many of `count` as there is capacity for.
  void start_additional(std::uint32_t count);
  /// Restarts from the latest checkpoint, once nothing of this attempt can add to it.
  void restart(const std::string& why);
  void find_state_again();
  /// The disk may be full for a while. Nothing is lost by waiting.
  void retry_finding_state(const error& reason);
  void give_up_waiting_for_capacity();
  /// Until a process has ended, its GPU is not free for another.
  [[nodiscard]] bool awaits_gpus() const;
  void place_again();
  void end_cuts(std::chrono::steady_clock::time_point now);

  // actions.cpp
  /// Carries them out when the journal says what they lead to.
  void act(actors::run_actions actions);
  void carry_out_what_is_kept();
  void carry_out(const actors::run_actions& actions);
  void carry_out(const begin_all& x, const std::string&);
  void carry_out(const begin_joiner& x, const std::string&);
  void carry_out(const accept_plans& x, const std::string&);
  void carry_out(const accept_plan_of& x, const std::string&);
  void carry_out(const refuse_plans& x, const std::string&);
  void carry_out(const refuse_report& x, const std::string&);
  void carry_out(const send_command& x, const std::string&);
  void carry_out(const stage_joiners& x, const std::string& why);
  void carry_out(const skip_loop& x, const std::string&);
  void carry_out(const end_staging& x, const std::string&);
  void carry_out(const abort_generation& x, const std::string& why);
  void carry_out(const hold& x, const std::string& why);
  void carry_out(const form_generation& x, const std::string&);
  void carry_out(const start_more& x, const std::string&);
  void carry_out(const fence_worker& x, const std::string&);
  void carry_out(const give_up_node& x, const std::string&);
  void carry_out(const avoid_node& x, const std::string&);
  void carry_out(const restart_run&, const std::string& why);
  void carry_out(const release_one& x, const std::string&);
  void carry_out(const actors::save_state& x, const std::string& why);
  void carry_out(const abort_all& x, const std::string& why);
  void carry_out(const release_all&, const std::string&);
  void carry_out(const warn&, const std::string& why);
  void carry_out(const conclude& x, const std::string&);
  [[nodiscard]] begin_training begin_message_for(worker_id worker) const;
  void begin_all_workers();
  void leave_nodes_that_go_away();
  void begin_joiner_of(const begin_joiner& joiner);
  void accept(const run_plan& plan, generation_id generation);
  void set_plan(const run_plan& plan);
  void form(const form_generation& next);
  void stage(const stage_joiners& group);
  void add(generation_record record);
  void fence(worker_id worker, const std::string& why);
  void abort_workers(const error& reason);
  /// Fails requests that wait for a lost worker, for addresses or a checkpoint, so that all workers can report.
  void end_waits_of(generation_id generation);
  /// Only notifies: user code may take long until it reaches a call that reports.
  void complain_about_reports();
  [[nodiscard]] generation_started generation_now() const;

  std::string function_;
  trainer_config config_;
  trainer_services services_;
  /// As configured, or as set by the last resize.
  worker_range wanted_workers_;
  struct {
    /// The run's secret, which workers must prove to know.
    std::string secret;
    run_claim claim;
  } authority_;
  /// When this driver began, in milliseconds since the epoch: the run's place among those that wait for resources.
  std::uint64_t began_ms_ = 0;
  std::variant<trainer_phase::idle, trainer_phase::looking, trainer_phase::claiming_workers, trainer_phase::gathering,
               trainer_phase::leasing, trainer_phase::claiming, trainer_phase::opening, trainer_phase::running,
               trainer_phase::finding_state, trainer_phase::awaiting_capacity, trainer_phase::concluding>
      phase_;
  run_audience audience_;
  run_record record_;
  std::optional<run_nodes> nodes_;
  /// Of a run that asks which nodes there are.
  std::optional<node_discovery> discovery_;
  /// Nodes that the run has left because they are named no more.
  std::set<std::uint32_t> unnamed_;
  run_workers workers_;
  /// The actors of this run, besides its nodes and workers.
  struct {
    run_files files;
    collectives_actor collectives;
    checkpoint_store store;
  } actors_;
  /// Ends waiting for the mirror.
  std::stop_source hurry_;
  checkpoint_metadata metadata_;
  starting_state state_;
  run_layout layout_;
  std::optional<run_coordinator> coordinator_;
  struct {
    journal_gate gate;
    /// Why the last write failed; empty if it succeeded.
    std::string problem;
    /// Requests whose decisions the journal does not contain yet, by version.
    std::deque<std::pair<std::uint64_t, caf::typed_response_promise<void>>> wishes;
  } journal_;
  hang_watch hangs_;
  bool is_out_of_time_ = false;
  /// What users know already.
  struct {
    new_failures failures;
    /// Metrics.
    std::set<std::string> not_finite;
    /// When events.jsonl was last told of it.
    std::chrono::steady_clock::time_point goodput;
  } reported_;
  /// Null if nobody asked for it.
  std::unique_ptr<run_monitor> monitor_;
};

} // namespace troupe::actors
