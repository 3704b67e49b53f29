#include "trainer/run_workers.hpp"

namespace troupe::actors {

namespace {

/// How long a worker may take to report its activity.
constexpr auto answer_patience = std::chrono::seconds{1};

} // namespace

void run_workers::on_started(worker_id worker, std::uint32_t node) {
  nodes_[worker] = node;
  living_.insert(worker);
}

void run_workers::on_inherited(worker_id worker, std::uint32_t node) {
  on_started(worker, node);
  inherited_.insert(worker);
  mail_[worker];
}

void run_workers::on_ended(worker_id worker) {
  mail_.erase(worker);
  living_.erase(worker);
  reports_.refuse(worker, {errc::worker_lost, "its process has ended"});
  reports_.forget(worker);
  plans_.forget(worker);
}

void run_workers::on_node_gone(std::uint32_t node) {
  for (auto [worker, its_node] : nodes_)
    if (its_node == node && living_.contains(worker))
      on_ended(worker);
}

std::optional<std::uint32_t> run_workers::node_of(worker_id worker) const {
  auto i = nodes_.find(worker);
  return i == nodes_.end() ? std::nullopt : std::optional{i->second};
}

void run_workers::fail_pending(const error& reason) {
  plans_.refuse_all(reason);
  reports_.refuse_all(reason);
}

void run_workers::begin_joiner(trainer_base& self, worker_id worker, const begin_training& message) {
  send(self, worker, message);
  for (const auto& command : commands_)
    send(self, worker, command);
}

void run_workers::command_all(trainer_base& self, const control_command& command) {
  commands_.push_back(command);
  send_all(self, command);
}

void run_workers::inherit_commands(trainer_base& self, const run_id& run, std::uint64_t last,
                                   const std::vector<control_command>& outstanding) {
  // Earlier commands were carried out; only their numbers matter. A stopped member may have missed some of them.
  for (auto number = std::uint64_t{1}; number <= last - outstanding.size(); ++number)
    command_all(self, {run, number, regroup_command{}});
  for (const auto& command : outstanding)
    command_all(self, command);
}

void run_workers::abort_all(trainer_base& self, const abort_training& message) {
  send_all(self, message);
  plans_.answer_all_of(message.generation, fail(message.reason));
}

void run_workers::forget_attempt() {
  mail_.clear();
  commands_.clear();
}

void run_workers::ask_activity(trainer_base& self, const run_id& run, const std::vector<worker_place>& places,
                               std::optional<worker_id> only,
                               const std::function<void(rank_id, const std::string&)>& on_answer) const {
  for (const auto& place : places)
    if (auto i = mail_.find(place.worker); i != mail_.end() && (!only || *only == place.worker))
      self.request(i->second.receiver(), answer_patience, activity_question{run})
          .then([on_answer, rank = place.rank](const activity_answer& answer) { on_answer(rank, answer.text); },
                // Then there is less to report.
                [](const caf::error&) {});
}

} // namespace troupe::actors
