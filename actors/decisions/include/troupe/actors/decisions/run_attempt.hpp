#pragma once

#include <troupe/actors/decisions/accepted_plans.hpp>
#include <troupe/actors/decisions/attempt_state.hpp>
#include <troupe/actors/decisions/control_state.hpp>
#include <troupe/actors/decisions/failure_budget.hpp>
#include <troupe/actors/decisions/generation_forming.hpp>
#include <troupe/actors/decisions/run_actions.hpp>
#include <troupe/actors/decisions/run_course.hpp>
#include <troupe/actors/decisions/silent_peers.hpp>
#include <troupe/actors/decisions/staging_groups.hpp>
#include <troupe/actors/decisions/worker_table.hpp>
#include <troupe/config/failure.hpp>
#include <troupe/config/run.hpp>
#include <troupe/config/scaling.hpp>
#include <troupe/messages/commands.hpp>
#include <troupe/messages/regroup.hpp>
#include <troupe/messages/staging.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace troupe::actors {

/// The reason for fencing a member that the others cannot reach.
inline constexpr const char* reason_of_cut = "the data network between its node and the other workers is cut";

/// One attempt of a run, from the start of its processes. Decides which workers are members, join and leave, and when
/// the next generation is formed. `run_coordinator` owns it, decides what a failure means for the run, and looks at
/// `state` after each call: the attempt may have come to its end. A plain class; not thread-safe.
class run_attempt {
 public:
  struct settings {
    run_id run;
    failure_config failure = {};
    worker_range workers = {1, 1};
    std::chrono::milliseconds start_timeout{};
    transport_mode transport = transport_mode::automatic;
  };

  run_attempt(settings config, run_course course, step_id first_step);
  /// Takes over the attempt of another driver, whose members are assumed to train.
  run_attempt(settings config, run_course course, const control_state& from, run_time now);

  /// The attempt after this one, with the next generation. It has no workers before `begin_at` and `on_started`.
  [[nodiscard]] run_attempt next() const;
  /// The step from which this attempt continues.
  void begin_at(step_id first_step);
  [[nodiscard]] step_id began_at() const noexcept { return began_at_; }

  [[nodiscard]] const settings& config() const noexcept { return config_; }
  /// The state that another process needs to continue this attempt.
  [[nodiscard]] control_state state_to_keep() const;
  /// Whether `kept` equals that state, except for `failures`. Copies nothing, because it is called after each event.
  [[nodiscard]] bool is_kept_in(const control_state& kept) const;
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] generation_id generation() const noexcept { return generation_; }
  [[nodiscard]] const attempt_state& state() const noexcept { return state_; }
  [[nodiscard]] bool is_starting() const noexcept { return state_.is<attempt_phase::starting>(); }
  [[nodiscard]] bool is_training() const noexcept { return state_.is<attempt_phase::training>(); }
  [[nodiscard]] bool is_regrouping() const noexcept { return state_.is<attempt_phase::regrouping>(); }
  [[nodiscard]] bool goes_on() const noexcept { return is_training() || is_regrouping(); }
  [[nodiscard]] bool is_held() const noexcept { return state_.is_held(); }
  [[nodiscard]] run_course& course() noexcept { return course_; }
  [[nodiscard]] const run_course& course() const noexcept { return course_; }
  [[nodiscard]] worker_table& workers() noexcept { return workers_; }
  [[nodiscard]] const worker_table& workers() const noexcept { return workers_; }
  /// The nodes and workers that do not answer now. They stay silent through a restart.
  [[nodiscard]] silent_peers& silent() noexcept { return silent_; }
  [[nodiscard]] const silent_peers& silent() const noexcept { return silent_; }
  [[nodiscard]] const accepted_plans& plans() const noexcept { return plans_; }
  /// Whether to accept a member's report that this generation is over. The previous driver may have formed later ones
  /// and announced them to some members.
  [[nodiscard]] bool takes_report_of(generation_id generation) const noexcept {
    return generation == generation_ || is_inherited();
  }
  /// Whether another driver has formed the generation, or may have begun forming it.
  [[nodiscard]] bool is_inherited() const noexcept { return !has_formed_; }
  /// The furthest step that any worker has applied, as far as is known.
  [[nodiscard]] step_id furthest() const { return std::max(furthest_, workers_.furthest()); }
  void note_progress(worker_record& who, step_id step);
  /// This worker is admitted.
  void note_numerics(worker_record& who, const std::string& numerics);
  /// As in `control_state`.
  [[nodiscard]] const std::string& numerics() const noexcept { return numerics_; }

  void on_started(const std::vector<worker_place>& places, run_time now);
  /// Ends a process of the previous driver that had no place in the generation.
  [[nodiscard]] run_action dismiss_survivor(const worker_place& place, run_time now);
  /// A worker that may join is ready.
  [[nodiscard]] run_actions on_ready(worker_record& who);
  /// All members have this plan.
  [[nodiscard]] run_actions accept(const run_plan& plan, run_time now);
  [[nodiscard]] run_actions on_caught_up(const caught_up& message);
  [[nodiscard]] run_actions on_report_of_joiner(worker_record& who, const regroup_report& report, run_time now);
  /// A member has reported: notes how far it is.
  void note_report(worker_record& who, const regroup_report& report);
  /// Returns nothing if this report was not requested: the worker has lost its group.
  [[nodiscard]] std::optional<run_actions> on_report_of_member(worker_record& who, const regroup_report& report);
  [[nodiscard]] run_actions on_tick(run_time now);

  /// The members that were fenced since the last call because the data network is cut between them and the others, and
  /// their last generation.
  [[nodiscard]] std::map<worker_id, generation_id> take_cut_off() { return std::exchange(cut_off_, {}); }

  /// A member is lost or the group hangs: the others form the next generation.
  [[nodiscard]] run_actions regroup(const std::string& why, const error& reason);
  /// A joiner has ended or is given up. `before` is its earlier standing, `cause` counts against the joiners' budget.
  [[nodiscard]] run_actions drop_joiner(const worker_record& who, const worker_standing& before, ended_by cause,
                                        const error& reason);
  /// How many workers to start.
  [[nodiscard]] std::uint32_t missing() const;
  [[nodiscard]] run_actions replace_missing() const;
  [[nodiscard]] run_actions on_capacity();
  [[nodiscard]] run_actions on_node_leaving(std::uint32_t node, bool capacity_elsewhere);
  [[nodiscard]] run_actions on_drain_timeout();
  [[nodiscard]] run_actions on_node_resumed(std::uint32_t node);
  /// `course().workers` has changed.
  [[nodiscard]] run_actions resize();
  [[nodiscard]] run_actions pause();
  [[nodiscard]] run_actions resume();
  [[nodiscard]] run_actions stop();
  [[nodiscard]] run_actions take_checkpoint();
  /// Forms the next generation, or holds it, if no report is awaited.
  [[nodiscard]] run_actions form_when_all_have_reported();

 private:
  run_action command(decltype(control_command::what) what, std::string why);
  /// A generation with these members begins.
  void note_formed(const std::vector<worker_place>& places, std::uint64_t commands_agreed);
  run_actions begin();
  run_actions prepare(worker_record& who);
  run_actions dismiss(worker_record& who, const std::string& reason, const std::string& why);
  run_actions ask_for_regroup(const std::string& why);
  run_actions ask_all_to_leave();
  run_actions let_joiners_in(run_time now);
  run_actions stage(const std::vector<worker_record*>& joiners, const std::string& names);
  run_actions wait_for_place(worker_record& who, run_time now);
  run_actions on_report_of_follower(worker_record& who, const regroup_report& report, run_time now);
  run_actions stop_waiting_for_followers(run_time now);
  [[nodiscard]] bool takes_state_in_generation(const worker_record& joiner) const;

  [[nodiscard]] bool comes_in(const worker_record& who) const;
  [[nodiscard]] bool must_be_held() const;
  run_actions hold_at(step_id commit_point, std::size_t members);
  run_actions let_all_go(const std::vector<worker_record*>& members);
  [[nodiscard]] std::vector<worker_record*> left_behind();
  run_actions leave_out_cut_off();
  run_actions form(const collected_reports& reports, regroup_decision decision);

  settings config_;
  std::uint32_t number_ = 1;
  generation_id generation_{1};
  run_course course_;
  attempt_state state_;
  worker_table workers_;
  accepted_plans plans_;
  joiner_budget joiner_budget_;
  /// The number of the last command.
  std::uint64_t commands_ = 0;
  /// As in `control_state`.
  std::vector<control_command> outstanding_;
  /// The members of the previous generation had agreed on the commands up to this one.
  std::uint64_t agreed_before_ = 0;
  std::string numerics_;
  std::vector<formed_member> formed_;
  /// Whether the generation was formed here.
  bool has_formed_ = true;
  staging_groups staging_;
  std::map<worker_id, generation_id> cut_off_;
  silent_peers silent_;
  step_id began_at_;
  step_id furthest_;
};

} // namespace troupe::actors
