#pragma once

#include "outbox.hpp"
#include "trainer/interface.hpp"
#include "trainer/node_links.hpp"
#include "trainer/run_files.hpp"
#include "trainer/severity.hpp"
#include <troupe/actors/decisions/broken_links.hpp>
#include <troupe/actors/decisions/heartbeat_monitor.hpp>
#include <troupe/actors/decisions/lease_round.hpp>
#include <troupe/actors/decisions/node_roster.hpp>
#include <troupe/error.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace troupe {
struct trainer_config;
}

namespace troupe::actors {

/// The events that `run_nodes` reports to the trainer.
class node_events {
 public:
  virtual ~node_events() = default;

  /// A node has answered, or has failed to: whether the run can be placed may have changed.
  virtual void on_node_answered() = 0;
  /// A node has opened the program, and can take workers.
  virtual void on_node_open(std::uint32_t node) = 0;
  /// Nodes that were open cannot be reached, for these reasons. Their workers may live.
  virtual void on_nodes_silent(const std::map<std::uint32_t, std::string>& nodes) = 0;
  /// A silent node has sent a message again.
  virtual void on_node_answers(std::uint32_t node) = 0;
  /// A node with workers of another driver's run answers `run_nodes::claim_all`, or has been taken over: these live.
  virtual void on_node_claimed(std::uint32_t node, const std::vector<worker_beat>& living) = 0;
  /// Another driver has the run.
  virtual void on_superseded() = 0;
  /// A node is lost, and its workers with it.
  virtual void on_node_lost(std::uint32_t node, const std::string& why) = 0;
  /// The run cannot begin as it was placed: a node that it needs has failed.
  virtual void on_node_missing(error reason) = 0;
  /// Whether the run cannot begin without this node. A late node may answer later.
  [[nodiscard]] virtual bool needs_node(std::uint32_t node, bool is_late) const = 0;
  virtual void notify(severity how, std::string text) = 0;
};

/// Manages the nodes of a run: connects to them, requests their offers, makes them open the program, detects silence,
/// and ends the run on them. Used in the trainer's thread; never blocks. node_claims.cpp has what it does with nodes
/// that have workers already.
class run_nodes {
 public:
  using clock = std::chrono::steady_clock;

  /// What a node gets to open a run.
  struct opening {
    /// Its directory and claim are set later.
    open_run request;
    run_control control;
    collectives_actor collectives;
    checkpoint_store store;
    run_files files;
  };

  /// `events` and `self` outlive it.
  run_nodes(trainer_base& self, node_events& events, const trainer_config& config, const trainer_services& services,
            run_id run, run_claim claim);

  /// The run that was in this run's directory before. Nodes that still have it, without a driver, end it.
  void set_predecessor(std::optional<run_proof> run) { predecessor_ = std::move(run); }
  /// Adds a node, which is not dialled yet. Returns its index.
  std::uint32_t add(std::string address);
  /// The run may use this node: dials it if it is new, or was left.
  void name(const named_node& which);
  /// Dials all nodes of the configuration, or hosts one in this process if it names none.
  void dial_all();
  /// As `dial_all`, for nodes that may have workers of the run from an earlier driver. Asks them which workers live,
  /// and uses the given offers until they make new ones.
  void claim_all(const std::string& secret, const std::map<std::uint32_t, node_offer>& nodes);
  /// Takes over the workers on claimed nodes, now or once the nodes can be reached, and makes the other nodes open the
  /// program.
  void adopt_all(opening what);
  /// No claimed node had workers: begins a run with another id.
  void begin_anew(run_id run);

  void on_dialled(node_dialled& message);
  void on_down(const node_down& message);

  /// Handles a heartbeat. Returns the sender's index; nothing if it is no node, or a node that was given up, which then
  /// ends its workers of this run and is readmitted.
  [[nodiscard]] std::optional<std::uint32_t> on_beat(const caf::strong_actor_ptr& sender, clock::time_point now);

  /// Reports nodes that are silent, and dials those that are away. Several times a second.
  void on_tick(clock::time_point now);

  /// The run continues without this node. If it answers again, its workers of this run are ended.
  void give_up(std::uint32_t node);

  /// The run waits for resources that others have: keeps its place in the queues of the nodes, and asks those that have
  /// made an offer for another.
  void ask_again(const waiting_run& who);
  /// Leases these amounts, by node, and calls `done` with the outcome. If a node refuses, the others get theirs back.
  void lease(std::map<std::uint32_t, resources> amounts, const waiting_run& who,
             std::function<void(expected<void>)> done);

  /// Makes the nodes that have made an offer open the program, and later nodes when they make theirs.
  void open(opening what);

  /// The node is named no more: it is not dialled again until it is.
  void unname(std::uint32_t node) { roster_[node].is_wanted = false; }
  /// Stops using a node that is going away.
  void leave(std::uint32_t node) { roster_[node].state = node_state::leaving; }
  /// Uses a node again that was to go away. False if it was not.
  [[nodiscard]] bool stay(std::uint32_t node);

  /// Starts workers on a node; `on_failure` is called if it could not.
  void start(std::uint32_t node, start_workers message, std::function<void(error)> on_failure);
  void kill(std::uint32_t node, worker_id worker, const std::string& why);

  /// Ends the run on all nodes that answer, and calls `done` once no process of it is left or the grace period is over.
  void end_run(std::function<void()> done);

  /// Closes all connections, and leaves the nodes as they are.
  void abandon();

  [[nodiscard]] std::optional<std::uint32_t> find(const caf::strong_actor_ptr& sender) const {
    return links_.find(sender);
  }
  [[nodiscard]] const node_roster& roster() const noexcept { return roster_; }
  [[nodiscard]] node_roster& roster() noexcept { return roster_; }
  /// For people.
  [[nodiscard]] std::string name_of(std::uint32_t node) const;
  /// Where workers on this node stream checkpoint parts to; empty if they do not.
  [[nodiscard]] const std::string& part_address_for(std::uint32_t node) const { return part_addresses_[node]; }

 private:
  void dial(std::uint32_t node);
  void claim(std::uint32_t node);
  void adopt(std::uint32_t node);
  void request_adopt(std::uint32_t node);
  void on_adopted(std::uint32_t node, const run_claimed& answer);
  void on_refused(std::uint32_t node, const caf::error& reason);
  /// Its workers have ended.
  void lose(std::uint32_t node, node_state from_now_on, const std::string& why);
  void report_broken(clock::time_point now);
  void ask_for_offer(std::uint32_t node);
  void open_on(std::uint32_t node);
  void ask_for_part_address(std::uint32_t node, std::function<void()> then);
  void request_open(std::uint32_t node);
  void report_missing();
  void readmit(std::uint32_t node);
  void report_silent(clock::time_point now);
  void fail(std::uint32_t node, std::uint64_t link, error reason);
  void miss(std::uint32_t node, node_state from_now_on, error reason);

  trainer_base* self_;
  node_events* events_;
  run_id run_;
  run_claim claim_;
  /// The secret of the run that was last opened or claimed, for commands.
  std::string secret_;
  std::optional<run_proof> predecessor_;
  /// Set while the run waits for resources.
  std::optional<waiting_run> waits_;
  node_links links_;
  std::optional<process_group> group_;
  node_roster roster_;
  heartbeat_monitor<std::uint32_t> monitor_;
  broken_links broken_;
  /// Nodes that are ending their workers before they can be used again.
  std::set<std::uint32_t> readmitted_;
  /// To the nodes, by index.
  std::vector<outbox<trainer_base, node_actor>> mail_;
  std::optional<opening> opening_;
  /// The secret of another driver's run, from `claim_all` until the takeover is decided.
  std::optional<std::string> claimed_with_;
  /// Nodes that may have workers of another driver and have not yet reported them.
  std::set<std::uint32_t> inherited_;
  std::vector<std::string> part_addresses_;
  /// Why nodes that the run needs cannot be used, until no other is opening the program.
  std::map<std::uint32_t, error> missing_;
  /// What users were told last about requests that have failed, by node.
  std::map<std::uint32_t, std::string> complaints_;
};

} // namespace troupe::actors
