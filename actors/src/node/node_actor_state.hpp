#pragma once

#include "local_messages.hpp"
#include "node/draining.hpp"
#include "node/hosted_run.hpp"
#include "node/launches.hpp"
#include "node/node_resources.hpp"
#include "node/run_table.hpp"
#include "node/shared_output.hpp"
#include "orderly_end.hpp"

#include <troupe/actors/decisions/refusal_log.hpp>
#include <troupe/actors/node.hpp>

#include <caf/all.hpp>

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace troupe::actors {

/// The node actor: starts, watches and ends the workers of the runs that drivers have opened on it.
class node_actor_state : public orderly_end<node_interface::base> {
 public:
  node_actor_state(caf::actor_config& cfg, node_config config, const launcher_factory& make_launcher);

  behavior_type make_behavior() override;
  const char* name() const override { return "troupe.node"; }

 private:
  void let_go() override;
  void log(const std::string& line) const;
  /// Refuses a peer. Log lines are limited, because a peer may repeat its request at will.
  caf::error refuse(const error& why);

  // -- drivers, in drivers.cpp ----------------------------------------------------------------------------------------

  caf::result<node_offer> offer(const offer_request& request);
  caf::result<void> lease(const lease_request& request);
  caf::result<run_opened> open(const open_run& request, const driver_handles& driver);
  /// Looks for the program of a run that is to be opened.
  void search(const run_id& run);
  void finish_search(const program_searched& event);
  /// The driver of a run has these handles from now on.
  void connect(hosted_run& run, const driver_handles& driver);
  /// The driver with this claim has the run, unless there is a greater one.
  expected<void> have(hosted_run& run, std::string_view command, const std::string& secret, const run_claim& claim);
  template <class Request>
  expected<run_claimed> have_claimed(const Request& request, std::string_view command);
  caf::result<run_claimed> claim(const claim_run& request);
  caf::result<run_claimed> adopt(const adopt_run& request, const driver_handles& driver);
  void driver_is_gone(const driver_down& event);
  /// The run continues without a driver, and ends if none connects in time.
  void await_driver(hosted_run& run);
  void end_without_driver(hosted_run& run);

  // -- workers, in workers.cpp ----------------------------------------------------------------------------------------

  caf::result<void> keep(const keep_processes& request, const process_keeper& keeper);
  void end_group(const std::string& group);
  /// Ends processes that wait for runs of other groups.
  void make_room_for(const hosted_run& run);
  caf::result<workers_started> start(const start_workers& request);
  start_order::promise answer_of(start_order& order);
  void note_start(const launch_outcome& event);
  caf::result<join_challenge> challenge(const join_request& request);
  caf::result<run_control, collectives_actor, checkpoint_store> admit(const join_proof& proof,
                                                                      const driver_follower& worker);
  void take_beat(const worker_beat& beat);
  void judge_silent_workers(hosted_run& run);
  caf::result<void> kill(const kill_worker& request);
  /// The run ends here.
  void kill_all(hosted_run& run);
  /// Reports killed processes in uninterruptible sleep as ended, so that nothing waits for them. They keep their GPUs.
  void report_stuck_workers(hosted_run& run);
  void worker_has_ended(worker_ended event);
  void report_end(hosted_run& run, worker_ended event);
  /// Sends one batch at a time. Lines that the driver does not take wait here, or are dropped.
  void send_output(const run_id& id);

  // -- the node as a whole, in node.cpp -------------------------------------------------------------------------------

  void await_beat();
  /// Reports to the drivers, and looks for silent workers.
  void beat();
  [[nodiscard]] node_figures figures();
  /// For users.
  [[nodiscard]] node_report report();
  caf::result<void> drain(const drain_request& request);
  void answer_if_drained();
  /// Unlike `drain`, the node stays.
  void take_no_workers(std::chrono::milliseconds patience);
  void take_workers();
  caf::result<void> end(const end_run& request);
  void forget_if_ended(const run_id& id);
  /// After the last process has ended, waits a moment for the run's last output lines.
  void note_last(hosted_run& run);
  /// Whether the driver has the run's last lines, or will never get them.
  [[nodiscard]] bool has_told(const hosted_run& run) const;
  void forget(run_id id);

  node_config config_;
  node_resources resources_;
  std::shared_ptr<shared_output> output_ = std::make_shared<shared_output>();
  std::unique_ptr<process_launcher> launcher_;
  run_table runs_;
  std::map<run_id, opening_run> opening_;
  std::uint64_t searches_ = 0;
  /// Of the searches whose threads have not returned, by their numbers: for which program, and whether nobody waits any
  /// more.
  struct running_search {
    std::string path;
    bool is_late = false;
  };
  std::map<std::uint64_t, running_search> searching_;
  /// To drivers, over all runs: a run that is opened once more has none of its former numbers.
  std::uint64_t connections_ = 0;
  /// The groups of processes that outlive a run.
  std::map<std::string, process_keeper> keepers_;
  refusal_log refusals_;
  std::optional<draining> draining_;
  /// Only what is counted since the start.
  node_figures totals_;
  /// Set while the node takes no workers although it stays: how long they may wait for replacements.
  std::optional<std::chrono::milliseconds> drained_;
};

} // namespace troupe::actors
