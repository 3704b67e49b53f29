#pragma once

#include "worker/session.hpp"
#include "worker/step/step_driver.hpp"

#include <troupe/messages/commands.hpp>

#include <string>
#include <vector>

namespace troupe {

/// One `for_each_step`: its steps, what happens at the boundary between two steps, and how a joiner gets there. Used by
/// the training thread. Throws `exception`, and what the body throws.
class step_loop {
 public:
  /// All ranks have agreed on the plan. The references outlive this object.
  step_loop(train_context::impl& session, const runtime::loop_plan& plan, const step_body& body)
      : session_(session), plan_(plan), body_(body), driver_(session, plan) {}

  /// Gives a joiner the state of the members. False: it has come too late for this loop.
  [[nodiscard]] bool join();

  enum class end : std::uint8_t {
    completed,
    /// It was left before its last step, by a command or by `run_settings::stop_after`.
    stopped,
  };
  [[nodiscard]] end run();

  /// How many shards were computed twice, for people.
  [[nodiscard]] std::string describe_checks() const;

 private:
  void follow();
  [[nodiscard]] end end_step(step_id step, actors::step_end how);
  /// Returns once all ranks have said that the run is finished with this step.
  void agree_to_finish(step_id step);
  [[nodiscard]] std::vector<control_command> take_due_commands();
  void save(step_id step, const actors::consider_checkpoint& what);
  void stage(step_id step, const actors::stage_state& what);

  train_context::impl& session_;
  const runtime::loop_plan& plan_;
  const step_body& body_;
  step_driver driver_;
};

} // namespace troupe
