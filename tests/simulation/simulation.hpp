#pragma once

#include "data_plane.hpp"
#include "driver_model.hpp"
#include "mutation.hpp"
#include "packets.hpp"
#include "random_source.hpp"
#include "tally.hpp"
#include "worker_model.hpp"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

/// The protocol of failure and healing over a seeded network and processes that die: `simulation` is one schedule.
///
/// What is the product's: every decision of the driver (`run_coordinator`) and of a worker (`worker_protocol`), the
/// layout and ownership of a generation, the table of the collectives actor, a worker's inbox of commands.
///
/// What is modelled, each as a plain class whose turns come in any order:
///   driver_model    what the trainer does around the coordinator, and the checkpoint store's actor;
///   worker_model    what a worker process does around its protocol: an actor, and the training thread's waits;
///   data_plane      the communicators of one generation: who has entered an operation, whose data came to whom;
///   staging_stream  what joiners are given while the others train on.
///   simulation      the network, the nodes, the clock, the faults, and the checker.
///
/// Network: between each pair of actors messages keep their order, as CAF has it; between different pairs they overtake
/// each other at will. A worker's process has two actors (its own, and its training thread's), so that an abort and an
/// answer overtake each other, too. Some messages are repeated at random: they say that this is harmless. Nothing is
/// lost but with a connection. What was on its way, or was received and not yet answered, comes once more when there is
/// another; the store, the collectives actor and the driver take it for one.
///
/// Faults: a worker is killed, or frozen and revived, or frozen for long or for ever; a node is killed, or frozen
/// with or without its workers, or cut off, and comes back, early or late, with its workers still at work, in an old
/// generation if the others went on without it; all nodes are silent at the same time; all workers are killed; two
/// workers lose their connection; a node leaves by itself; the driver is killed, and another takes the run over. Some
/// faults come after a step, at any distance; some as soon as a worker stands in a certain place: reports, connects,
/// transfers state, saves. Beside them users ask for checkpoints, pauses, other sizes, a stop.
///
/// In some schedules one more thing goes wrong, which the run may end by: the training function throws, once or always,
/// in a step of members or of joiners; processes are of another build or host, have another plan, end with another
/// state, end by themselves, or hang before they join; few failures are allowed; no rank moves. Users stop a run, at
/// once or after the step, at any time from its start.
///
/// Checked in every schedule: each state that any process ever reaches, given up or not, is the one of the undisturbed
/// run, so that no step is lost, doubled or summed over wrong shards, and no two survivors differ; the same of every
/// evaluation, each of which is done once; no survivor has committed more than what a regroup decides; the run ends,
/// within bounds, once, and well, or for a reason that there was and that it names; nothing is done after the end; what
/// a process does that differs from the others changes nothing; what a member of an old
/// generation or a lost one says has no effect but a refusal; no checkpoint of an old generation is written; a
/// checkpoint is gone back to only when nobody who has the state is left; a silent node is given up only if somebody
/// else has the state, or in the end.
///
/// Not modelled: bytes (one number stands for the state, modular sums for the canonical tree, which has its own tests),
/// gradients reduced in several parts, a custom loop, the exchange of descriptors, full disks, two drivers at
/// once, the end of a driver before its run has members.
namespace troupe::simulation {

/// The distance between two reminders of the driver's clock, which goes on by one with every turn of anybody.
inline constexpr std::uint32_t tick_length = 20;

class simulation final : public worker_environment, public driver_environment {
 public:
  simulation(std::uint64_t seed, mutation defect, tally& counts, std::vector<std::string>* trace);
  ~simulation() override;

  /// Simulates the schedule to its end. Returns what went wrong.
  std::optional<std::string> simulate();

  /// How many faults there were.
  [[nodiscard]] std::uint32_t faults() const noexcept { return faults_; }
  [[nodiscard]] std::uint64_t turns() const noexcept { return turns_; }

  // -- worker_environment ---------------------------------------------------------------------------------------------
  random_source& random() override { return random_; }
  mutation defect() const override { return defect_; }
  const run_id& run() const override { return run_; }
  bool keeps_journal() const override { return keeps_journal_; }
  const program& training_function() const override { return program_; }
  bool throws(const worker_model& who, step_id step, program::exception::place where) override;
  std::uint64_t checkpoint_every() const override { return checkpoint_every_; }
  bool peers_are_noticed() const override { return peers_are_noticed_; }
  void send_to_driver(worker_model& from, packet what) override;
  void send_to_store(worker_model& from, packet what) override;
  void send_to_collectives(worker_model& from, packet what) override;
  std::vector<rank_id> unreachable_from(const worker_model& who) override;
  std::shared_ptr<data_plane> group_of(const group_place& place, const std::vector<rank_id>& joiners,
                                       const exchange_result& found) override;
  std::shared_ptr<staging_stream> stream_of(generation_id generation, std::uint64_t number,
                                            std::uint32_t sources) override;
  void violates(const worker_model& who, const std::string& what) override;
  void stands(worker_model& who, standing where) override;
  void has_applied(worker_model& who, const number_chain& before, const number_chain& after) override;
  void process_ends(worker_model& who) override;
  void skips_loop(worker_model& who) override;
  void knows_evaluation() override { counts_.count(branch::evaluation_known); }
  void note(const worker_model& who, const std::string& what) override;
  bool is_tracing() const override { return trace_ != nullptr; }

  // -- driver_environment ---------------------------------------------------------------------------------------------
  actors::run_coordinator::time clock() const override;
  void send_to_actor(worker_id worker, packet what) override;
  void send_to_thread(worker_id worker, packet what) override;
  void send_to_node(std::uint32_t node, packet what) override;
  void send_to_driver_itself(packet what) override;
  void remind(reminder what) override;
  std::optional<worker_beat> beat_of(worker_id worker) override;
  void count(branch what) override { counts_.count(what); }
  void violate(const std::string& what) override;
  void note(const std::string& what) override;
  void forms(const actors::form_generation& next) override;
  void restarts() override;
  void gives_up(std::uint32_t node, std::uint32_t attempt, std::chrono::steady_clock::duration silent_for) override;
  void gives_up(worker_id worker, std::uint32_t attempt, std::chrono::steady_clock::duration silent_for) override;
  std::optional<std::vector<silent_worker>> silent_workers_of(std::uint32_t node) override;
  void tells_to_stop(const std::vector<worker_id>& whom) override;
  [[nodiscard]] bool has_ignored_the_stop() const;
  void concludes(const actors::conclude& end, const std::string& why) override;
  std::optional<regroup_report> guess_report_of(worker_id worker) override;

 private:
  /// Where a queue of messages ends.
  enum class end : std::uint8_t { actor, thread, driver, store, collectives, node, driver_from_node, driver_itself };

  /// The messages on their way between one pair of actors.
  struct route {
    end to;
    /// The worker or node at its far end.
    std::uint32_t who;
    std::deque<packet> packets = {};
    bool is_active = false;
    /// Turns out of eight that it is passed over.
    std::uint32_t slowness = 0;
  };

  struct process {
    process(worker_environment& world, worker_id id, std::uint32_t node, flaw has);

    worker_model model;
    route to_actor;
    route to_thread_from_driver;
    route to_thread_from_others;
    route to_driver;
    route to_store;
    route to_collectives;
    std::uint32_t slowness = 0;
    bool is_cut_off = false;
    /// When its node finds it silent that freezes now.
    std::chrono::steady_clock::time_point silent_from = {};
    /// What its threads have asked and have no answer to, and the way there.
    std::vector<std::pair<route*, packet>> unanswered = {};
    /// What another driver has to hear from it first, once it was said.
    std::optional<packet> introduction = {};
    std::optional<packet> end = {};
  };

  struct node {
    route from_driver;
    route to_driver;
    bool lives = true;
    bool frozen = false;
    bool cut = false;
    bool leaves = false;
    /// Which driver it is connected to.
    std::uint32_t driver = 1;
    /// Changes with everything that happens to it, so that what was planned before is void.
    std::uint32_t epoch = 0;
  };

  enum class event : std::uint8_t {
    remind_tick,
    remind_start,
    remind_drain,
    remind_hold,
    remind_grace,
    resume_run,
    revive_worker,
    report_silence,
    revive_node,
    mend_link,
    reset_link,
    notice_end_of_node,
    bring_node_back,
    mend_network,
    end_leaving_node,
    start_driver,
  };

  struct planned_event {
    std::uint64_t due = 0;
    event what = event::remind_tick;
    std::uint32_t who = 0;
    std::uint32_t epoch = 0;
  };

  /// Something that is to happen some turns after a step was committed by anybody.
  enum class incident : std::uint8_t {
    kill_worker,
    freeze_worker,
    kill_node,
    freeze_node,
    cut_node_off,
    kill_several,
    kill_all,
    cut_connection,
    cut_network,
    silence_all_nodes,
    kill_driver,
    // From here on, no faults, or such as end the run.
    exit_worker,
    hang_worker,
    group_hang,
    node_leaves,
    checkpoint,
    pause,
    resize,
    stop,
    stop_at_once,
    none,
  };

  struct planned_incident {
    incident what = incident::none;
    std::uint64_t step = 0;
    std::uint32_t turns = 0;
    /// Happens to whoever stands there first, instead.
    std::optional<standing> where = {};
    std::uint32_t occasion = 0;
    std::optional<worker_id> who = {};
  };

  void write_program();
  void allow_few_failures(actors::run_coordinator::settings& settings);
  void plan_trouble();
  void plan_incidents();
  void start_run();
  void turn();
  bool take_random_turn();
  void deliver(route& from);
  void push(route& to, packet what);
  void set_active(route& x, bool active);
  [[nodiscard]] bool is_open(const route& x) const;
  void handle(const route& from, packet what);
  void at_node(std::uint32_t index, packet what);
  void plan(std::uint32_t delay, event what, std::uint32_t who = 0, std::uint32_t epoch = 0);
  void fire(const planned_event& x);
  void cause_what_is_due();
  void cause(const planned_incident& x);

  [[nodiscard]] process* find(worker_id worker);
  /// A living process that the run has not given up, or any.
  [[nodiscard]] process* pick_process();
  [[nodiscard]] std::optional<std::uint32_t> pick_node();
  void kill(process& x, std::int32_t status);
  void count_loss(standing where);
  void check_failures();
  void check_given_up(const std::function<bool(const worker_model&)>& is_given_up, std::uint32_t attempt,
                      std::chrono::steady_clock::duration silent_for, const std::string& name);
  void check_cause(const actors::conclude& end);
  void check_saved();
  [[nodiscard]] bool is_ground(const error& reason) const;
  void check_results();
  void outlive_the_end();
  [[nodiscard]] flaw flaw_for(worker_id worker);
  void freeze(process& x);
  void kill_node(std::uint32_t index);
  void freeze_node(std::uint32_t index);
  void cut_off(std::uint32_t index);
  void cut_network();
  void cut_between_sides(data_plane& group);
  /// On which side of the cut in the data network a node is.
  [[nodiscard]] bool is_far(std::uint32_t node) const { return far_side_.contains(node); }
  void reset(std::uint32_t index);
  void kill_driver();
  void start_driver();
  /// The processes of a node are connected again: what they have said and not heard of comes once more.
  void repeat_requests(std::uint32_t index);
  void introduce(std::uint32_t index);
  [[nodiscard]] std::vector<worker_beat> living_on(std::uint32_t index) const;
  /// A node answers, the driver that it knows or another.
  void speak(std::uint32_t index);
  void send(worker_model& from, route process::*where, packet what);
  void clear(route& x);

  random_source random_;
  mutation defect_;
  tally& counts_;
  std::vector<std::string>* trace_;
  run_id run_{"r"};
  std::uint64_t steps_ = 10;
  std::uint64_t checkpoint_every_ = 3;
  bool peers_are_noticed_ = true;
  bool is_elastic_ = false;
  std::uint32_t first_size_ = 3;
  program program_;
  /// What some of the processes have.
  flaw flaw_ = flaw::none;
  std::uint32_t most_failures_ = 0;
  /// How long the run waits for nodes that alone have its state.
  std::chrono::milliseconds unreachable_after_{600'000};

  bool keeps_journal_ = false;
  actors::run_coordinator::settings settings_;
  std::optional<driver_model> driver_;
  /// How many there have been, and whether the last lives.
  std::uint32_t drivers_ = 1;
  /// The one that formed the last generation.
  std::uint32_t formed_by_ = 1;
  bool driver_lives_ = true;
  std::deque<node> nodes_;
  /// By worker id; gaps are processes that never were.
  std::vector<std::unique_ptr<process>> processes_;
  /// The ids of those that live.
  std::vector<std::uint32_t> living_;
  route driver_itself_{end::driver_itself, 0};
  std::vector<route*> active_;
  std::map<generation_id, std::shared_ptr<data_plane>> groups_;
  /// By generation and number.
  std::map<std::pair<generation_id, std::uint64_t>, std::shared_ptr<staging_stream>> streams_;

  /// The nodes on one side of a cut in the data network; empty if there is none.
  std::set<std::uint32_t> far_side_;

  std::uint64_t now_ = 0;
  std::uint64_t turns_ = 0;
  std::uint32_t idle_ticks_ = 0;
  std::vector<planned_event> events_;
  std::vector<planned_incident> incidents_;
  /// When the furthest worker committed each step first.
  std::vector<std::uint64_t> committed_at_;
  std::uint64_t furthest_ = 0;
  std::uint32_t faults_ = 0;
  bool stop_asked_ = false;
  /// The furthest step when the stop was asked for, or, later, when the workers were told.
  std::optional<std::uint64_t> stop_asked_after_;
  /// The same for each worker that was told, when the command reached it; the last step until then.
  std::map<std::uint32_t, std::uint64_t> stop_heard_after_;
  bool has_thrown_ = false;
  bool throws_again_ = false;
  std::uint32_t members_threw_ = 0;
  bool has_exited_ = false;
  bool has_hung_ = false;
  bool was_held_ = false;
  std::uint32_t group_hangs_ = 0;

  // -- the checker's memory -------------------------------------------------------------------------------------------
  step_id commit_point_;
  /// By attempt: whether workers of this host, or of another, have trained.
  std::map<std::uint32_t, std::uint32_t> hosts_;
  /// How many loops each joiner was told to skip.
  std::map<worker_id, std::uint32_t> skipped_;
  std::optional<actors::conclude> conclusion_;
  std::optional<std::string> violation_;
};

} // namespace troupe::simulation
