#pragma once

#include <troupe/actors/decisions/regroup.hpp>
#include <troupe/actors/decisions/run_coordinator.hpp>

#include <algorithm>
#include <doctest/doctest.h>

namespace troupe::actors::testing {

using namespace std::chrono_literals;

const auto run = run_id{"r"};

inline worker_progress after(std::uint64_t committed, std::uint64_t evaluations = 0) {
  return {{committed}, committed * 10, evaluations};
}

inline regroup_report report_of(std::uint32_t worker, decltype(regroup_report::position) position,
                                std::uint64_t generation = 1) {
  return {run, {generation}, {worker}, 0, position, {}};
}

/// Of a worker that has lost its group, and was in no step.
inline regroup_report elsewhere(std::uint32_t worker, std::uint64_t committed, std::uint64_t generation = 1) {
  return report_of(worker, worker_position::elsewhere{after(committed)}, generation);
}

/// Of a worker that was in the next step, and has its gradient.
inline regroup_report holding(std::uint32_t worker, std::uint64_t committed, std::uint64_t generation = 1) {
  return report_of(worker, worker_position::in_step{after(committed), true}, generation);
}

/// The end of one that was let go already: at most, another is tried again for which there was no capacity.
inline bool only_makes_room(const run_actions& actions) {
  return std::ranges::all_of(actions, [](const auto& x) { return std::holds_alternative<start_more>(x.what); });
}

/// Workers on two nodes, all in training.
inline run_coordinator training(std::uint32_t workers, failure_config failure = {}) {
  run_coordinator::settings config;
  config.run = run;
  config.failure = failure;
  for (std::uint32_t i = 0; i < workers; ++i)
    config.places.push_back({{i}, {i}, i / 2, i % 2, 2});
  auto result = run_coordinator{config};
  for (std::uint32_t i = 0; i < workers; ++i)
    static_cast<void>(result.on_ready({run, {i}, 100 + i, "host", "", ""}));
  REQUIRE(result.training());
  return result;
}

inline worker_ended killed(std::uint32_t worker) {
  return {run, {worker}, 137, "killed by signal 9 (SIGKILL)", {}};
}

/// A training function has ended with an error.
inline worker_finished fails(std::uint32_t worker, std::uint64_t step, errc code, const std::string& text) {
  worker_finished result;
  result.run = run;
  result.generation = {1};
  result.worker = {worker};
  result.step = {step};
  result.reason.code = code;
  result.reason.message = text;
  return result;
}

inline worker_finished throws(std::uint32_t worker, std::uint64_t step, const std::string& text) {
  return fails(worker, step, errc::user_error, text);
}

inline worker_finished cut_off(std::uint32_t worker, std::uint64_t step) {
  return fails(worker, step, errc::aborted, "lost rank 1");
}

inline worker_finished finished(std::uint32_t worker) {
  auto result = fails(worker, 10, errc::none, "");
  result.state_sha256 = "state";
  return result;
}

template <class Action>
inline const Action* find(const run_actions& actions) {
  for (const auto& x : actions)
    if (const auto* found = std::get_if<Action>(&x.what))
      return found;
  return nullptr;
}

template <class Action>
inline std::size_t count(const run_actions& actions) {
  return static_cast<std::size_t>(
      std::ranges::count_if(actions, [](const run_action& x) { return std::holds_alternative<Action>(x.what); }));
}

/// How many are to be started; 0 if nobody says so.
inline std::uint32_t asked_for(const run_actions& actions) {
  CHECK(count<start_more>(actions) <= 1);
  const auto* found = find<start_more>(actions);
  return found == nullptr ? 0 : found->count;
}

/// Whether the one command is to come to the next boundary.
inline bool asks_for_regroup(const run_actions& actions, std::uint64_t generation = 1) {
  const auto* found = find<send_command>(actions);
  return found != nullptr && count<send_command>(actions) == 1 &&
         found->command.what == decltype(found->command.what){regroup_command{{generation}}};
}

inline bool says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  auto result = text.find(part) != std::string::npos;
  CHECK(result);
  return result;
}

inline run_plan plan_of(std::uint32_t worker, std::uint64_t generation = 1) {
  return {run, {generation}, {worker}, 100, 64, 1797, "digits", "w f32 [3]", 0, {}};
}

inline worker_ready ready_of(std::uint32_t worker) {
  return {run, {worker}, 100 + worker, "host", "c0ffee", "v3"};
}

/// Of a worker that has come to a boundary because a command said so.
inline regroup_report at_boundary(std::uint32_t worker, std::uint64_t committed, std::uint64_t generation = 1) {
  return report_of(worker, worker_position::between_steps{after(committed)}, generation);
}

/// Of a worker that was cut off in the middle of the next step.
inline regroup_report in_step(std::uint32_t worker, std::uint64_t committed, std::uint64_t generation = 1) {
  return report_of(worker, worker_position::in_step{after(committed)}, generation);
}

/// Of a joiner that asks for a place.
inline regroup_report asks_for_place(std::uint32_t worker, std::uint64_t generation = 0) {
  return report_of(worker, worker_position::without_state{}, generation);
}

inline run_coordinator::settings settings_for(std::uint32_t workers, worker_range range) {
  run_coordinator::settings config;
  config.run = run;
  config.build_id = "c0ffee";
  config.workers = range;
  config.compare_numerics = [](const std::string& ours, const std::string& theirs) {
    return ours == theirs ? std::vector<std::string>{} : std::vector<std::string>{ours + " / " + theirs};
  };
  for (std::uint32_t i = 0; i < workers; ++i)
    config.places.push_back({{i}, {i}, i / 2, i % 2, 2});
  return config;
}

/// Everybody is ready, and has a plan: all are in their loop.
inline void begin(run_coordinator& group, const std::vector<std::uint32_t>& workers, std::uint64_t generation = 1) {
  for (auto i : workers)
    static_cast<void>(group.on_ready(ready_of(i)));
  REQUIRE(group.training());
  for (auto i : workers)
    static_cast<void>(group.on_plan(plan_of(i, generation)));
  REQUIRE(group.accepted().size() == 1);
}

inline run_coordinator in_loop(const run_coordinator::settings& config) {
  std::vector<std::uint32_t> workers;
  for (const auto& place : config.places)
    workers.push_back(place.worker.value);
  auto result = run_coordinator{config};
  begin(result, workers);
  return result;
}

inline run_coordinator in_loop(std::uint32_t workers) {
  return in_loop(settings_for(workers, workers));
}

/// A process was started, and comes as far as its first loop.
inline void prepare(run_coordinator& group, std::uint32_t worker, std::uint32_t node) {
  group.on_started({{{worker}, {worker}, node, 0, 1}});
  const auto begins = group.on_ready(ready_of(worker));
  REQUIRE(find<begin_joiner>(begins));
  CHECK(find<begin_joiner>(begins)->worker == worker_id{worker});
  REQUIRE(find<accept_plan_of>(group.on_plan(plan_of(worker, 0))));
}

/// Those of the workers that are named come to the boundary; returns what the last of them leads to.
inline run_actions gather(run_coordinator& group, const std::vector<std::uint32_t>& workers, std::uint64_t committed,
                          std::uint64_t generation = 1) {
  run_actions last;
  for (auto i : workers) {
    CHECK(last.empty());
    last = group.on_report(at_boundary(i, committed, generation));
  }
  return last;
}

inline std::vector<std::uint32_t> workers_of(const form_generation& next) {
  std::vector<std::uint32_t> result;
  for (std::uint32_t rank = 0; rank < next.places.size(); ++rank) {
    CHECK(next.places[rank].rank == rank_id{rank});
    result.push_back(next.places[rank].worker.value);
  }
  return result;
}

using ids = std::vector<std::uint32_t>;

} // namespace troupe::actors::testing
