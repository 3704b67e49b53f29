#pragma once

#include "trainer/interface.hpp"
#include "trainer/pending_replies.hpp"
#include <troupe/actors/decisions/placement.hpp>
#include <troupe/messages/commands.hpp>

#include <caf/all.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// The worker processes of a run: on which node each was started, which have not ended, and what the trainer sends to
/// those that have joined. Used in the trainer's thread.
class run_workers {
 public:
  void on_started(worker_id worker, std::uint32_t node);
  void on_joined(worker_id worker, const worker_actor& actor) { actors_[worker] = actor; }
  void on_ended(worker_id worker);
  /// The node's connection is gone: nobody will report the ends of its workers.
  void on_node_gone(std::uint32_t node);

  /// The node of any process that was ever started.
  [[nodiscard]] std::optional<std::uint32_t> node_of(worker_id worker) const;
  [[nodiscard]] const std::set<worker_id>& living() const noexcept { return living_; }

  /// The requests that wait for the coordinator's decisions.
  [[nodiscard]] pending_replies<plan_accepted>& plans() noexcept { return plans_; }
  [[nodiscard]] pending_replies<next_generation>& reports() noexcept { return reports_; }

  /// Nobody is left waiting for an answer that does not come.
  void fail_pending(const error& reason);

  /// Nothing happens for a worker that has not joined.
  void begin(worker_id worker, const begin_training& message) const { send(worker, message); }
  /// As above, and repeats the commands that it missed.
  void begin_joiner(worker_id worker, const begin_training& message) const;
  void command_all(const control_command& command);
  void abort_all(const abort_training& message);
  void release(worker_id worker, const run_id& run) const { send(worker, release_worker{run}); }
  void release_all(const run_id& run) const { send_all(release_worker{run}); }

  /// The run restarts: nothing is sent to the workers of this attempt any more.
  void forget_attempt();

  /// Asks a worker, or all in these places, what they do. Those that do not answer soon are left out.
  void ask_activity(trainer_base& self, const run_id& run, const std::vector<worker_place>& places,
                    std::optional<worker_id> only,
                    const std::function<void(rank_id, const std::string&)>& on_answer) const;

 private:
  template <class Message>
  void send(worker_id worker, const Message& message) const {
    if (auto i = actors_.find(worker); i != actors_.end())
      caf::anon_send(i->second, message);
  }
  template <class Message>
  void send_all(const Message& message) const {
    for (const auto& [worker, actor] : actors_)
      caf::anon_send(actor, message);
  }

  std::map<worker_id, worker_actor> actors_;
  std::map<worker_id, std::uint32_t> nodes_;
  std::set<worker_id> living_;
  pending_replies<plan_accepted> plans_;
  pending_replies<next_generation> reports_;
  /// All commands of this attempt.
  std::vector<control_command> commands_;
};

} // namespace troupe::actors
