#pragma once

#include "outbox.hpp"
#include "trainer/interface.hpp"
#include "trainer/pending_replies.hpp"
#include <troupe/actors/decisions/placement.hpp>
#include <troupe/messages/commands.hpp>

#include <caf/all.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// The worker processes of a run: the node of each, which have not ended, and the trainer's messages to those that have
/// joined. Used in the trainer's thread.
class run_workers {
 public:
  void on_started(worker_id worker, std::uint32_t node);
  /// A worker that another driver has started. Messages to it wait until it has joined.
  void on_inherited(worker_id worker, std::uint32_t node);
  [[nodiscard]] bool is_inherited(worker_id worker) const { return inherited_.contains(worker); }
  /// The worker has joined, or has a new handle after a lost connection: sends unanswered messages again.
  void on_joined(worker_id worker, const worker_actor& actor) { mail_[worker].connect(actor); }
  void on_ended(worker_id worker);
  /// The node is lost or given up: the ends of its workers will not be reported.
  void on_node_gone(std::uint32_t node);

  /// The node of any process that was ever started.
  [[nodiscard]] std::optional<std::uint32_t> node_of(worker_id worker) const;
  [[nodiscard]] const std::set<worker_id>& living() const noexcept { return living_; }

  /// The requests that wait for the coordinator's decisions.
  [[nodiscard]] pending_replies<run_plan, plan_accepted>& plans() noexcept { return plans_; }
  [[nodiscard]] pending_replies<regroup_report, next_generation>& reports() noexcept { return reports_; }

  /// Whether the batch is new: it may be repeated over another connection.
  [[nodiscard]] bool take(const metrics_batch& batch) { return is_new(batches_[batch.worker], batch.number); }
  [[nodiscard]] bool take(const worker_output& output) { return is_new(outputs_[output.worker], output.number); }

  /// Fails all pending requests.
  void fail_pending(const error& reason);

  /// Nothing happens for a worker that has not joined.
  void begin(trainer_base& self, worker_id worker, const begin_training& message) { send(self, worker, message); }
  /// As above, and repeats the commands that it missed.
  void begin_joiner(trainer_base& self, worker_id worker, const begin_training& message);
  void command_all(trainer_base& self, const control_command& command);
  /// Takes over the commands of the previous driver: `last` is the number of its last command, and `outstanding` are
  /// those that may not have reached all workers, which are sent again.
  void inherit_commands(trainer_base& self, const run_id& run, std::uint64_t last,
                        const std::vector<control_command>& outstanding);
  void abort_all(trainer_base& self, const abort_training& message);
  void release(trainer_base& self, worker_id worker, const run_id& run) { send(self, worker, release_worker{run}); }
  void release_all(trainer_base& self, const run_id& run) { send_all(self, release_worker{run}); }

  /// The run restarts: stops sending to the workers of this attempt.
  void forget_attempt();

  /// Asks a worker, or all in these places, for their activity. Skips workers that do not answer soon.
  void ask_activity(trainer_base& self, const run_id& run, const std::vector<worker_place>& places,
                    std::optional<worker_id> only,
                    const std::function<void(rank_id, const std::string&)>& on_answer) const;

 private:
  template <class Message>
  void send(trainer_base& self, worker_id worker, const Message& message) {
    if (auto i = mail_.find(worker); i != mail_.end())
      i->second.send(self, message);
  }
  template <class Message>
  void send_all(trainer_base& self, const Message& message) {
    for (auto& [worker, box] : mail_)
      box.send(self, message);
  }

  static bool is_new(std::uint64_t& last, std::uint64_t number) {
    return number > std::exchange(last, std::max(last, number));
  }

  /// Messages to the workers that have joined.
  std::map<worker_id, outbox<trainer_base, worker_actor>> mail_;
  std::map<worker_id, std::uint32_t> nodes_;
  std::set<worker_id> living_;
  /// Workers that another driver has started.
  std::set<worker_id> inherited_;
  /// The numbers of the last of each.
  std::map<worker_id, std::uint64_t> batches_;
  std::map<worker_id, std::uint64_t> outputs_;
  pending_replies<run_plan, plan_accepted> plans_;
  pending_replies<regroup_report, next_generation> reports_;
  /// All commands of this attempt.
  std::vector<control_command> commands_;
};

} // namespace troupe::actors
