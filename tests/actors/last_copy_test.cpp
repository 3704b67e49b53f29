#include <troupe/actors/decisions/last_copy.hpp>

#include <doctest/doctest.h>
#include <optional>
#include <set>
#include <variant>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto run_ends = error{errc::aborted, "the run is ending: out of range"};

/// Members of ranks 0, 1, ..., and the end of their run.
struct members {
  worker_table workers;
  last_copy copy{run_ends, {10}};

  explicit members(std::uint32_t count) {
    for (std::uint32_t i = 0; i < count; ++i) {
      workers.add({{i}, {i}, 0, i, count}, {10}, {});
      workers.find({i})->stands = standing::active{};
    }
  }

  static regroup_report report_of(std::uint32_t worker, std::optional<std::uint64_t> committed,
                                  bool holds_gradient = false) {
    regroup_report result;
    result.worker = {worker};
    if (committed)
      result.position = worker_position::in_step{{{*committed}}, holds_gradient};
    return result;
  }

  run_actions report(std::uint32_t worker, std::optional<std::uint64_t> committed, bool holds_gradient = false) {
    return copy.on_report(workers, *workers.find({worker}), report_of(worker, committed, holds_gradient));
  }
  run_actions finish(std::uint32_t worker, errc reason) {
    workers.find({worker})->stands = standing::finished{};
    return copy.on_finished(workers, {worker}, reason);
  }
  run_actions end(std::uint32_t worker) {
    workers.find({worker})->stands = standing::ended{};
    return copy.on_ended(workers, {worker});
  }
  run_actions tick(std::chrono::milliseconds at) { return copy.on_tick(workers, run_time{at}); }
};

std::optional<std::uint32_t> asked(const run_actions& actions) {
  std::optional<std::uint32_t> result;
  for (const auto& each : actions)
    if (const auto* x = std::get_if<save_state>(&each.what)) {
      CHECK_FALSE(result.has_value());
      CHECK(x->reason == run_ends);
      result = x->worker.value;
    }
  return result;
}

/// The step of the state that is to be saved.
std::uint64_t step_of(const run_actions& actions) {
  for (const auto& each : actions)
    if (const auto* x = std::get_if<save_state>(&each.what))
      return x->step.value;
  return 0;
}

std::set<std::uint32_t> refused(const run_actions& actions) {
  std::set<std::uint32_t> result;
  for (const auto& each : actions)
    if (const auto* x = std::get_if<refuse_report>(&each.what))
      result.insert(x->worker.value);
  return result;
}

using workers = std::set<std::uint32_t>;

} // namespace

TEST_CASE("of those that have committed most, the lowest rank saves the state, and the others end when it has") {
  members group{4};
  CHECK(group.copy.begin(group.workers).empty());
  CHECK(group.report(3, 12).empty());
  CHECK(group.report(2, 12).empty());
  CHECK(group.report(0, 11).empty());
  CHECK(asked(group.report(1, {})) == 2);
  CHECK(group.copy.is_asked({2}));
  CHECK(group.finish(0, errc::aborted).empty());
  CHECK(refused(group.finish(2, errc::aborted)) == workers{1, 3});
  CHECK_FALSE(group.copy.is_overdue());
  CHECK(group.tick(0ms).empty());
  CHECK(group.tick(2s).empty());
  CHECK_FALSE(group.copy.is_overdue());
  CHECK(group.tick(2'200ms).empty());
  CHECK(group.copy.is_overdue());
}

TEST_CASE("a step that a failed worker has applied is saved by a member that holds its gradient") {
  members group{3};
  group.workers.find({0})->note_applied({12});
  CHECK(group.finish(0, errc::user_error).empty());
  CHECK(group.report(1, 11).empty());
  const auto actions = group.report(2, 11, true);
  CHECK(asked(actions) == 2);
  CHECK(step_of(actions) == 12);
  // Nobody is known to have applied the step whose gradient is held here.
  members others{2};
  CHECK(others.report(0, 11).empty());
  const auto without = others.report(1, 11, true);
  CHECK(asked(without) == 0);
  CHECK(step_of(without) == 11);
}

TEST_CASE("a step that a member cannot apply is asked of no other") {
  members group{3};
  group.workers.find({0})->note_applied({12});
  CHECK(group.finish(0, errc::user_error).empty());
  CHECK(group.report(1, 11, true).empty());
  CHECK(step_of(group.report(2, 11, true)) == 12);
  const auto next = group.finish(1, errc::user_error);
  CHECK(asked(next) == 2);
  CHECK(step_of(next) == 11);
}

TEST_CASE("what was reported before the run failed counts") {
  members group{2};
  for (std::uint32_t i = 0; i < 2; ++i)
    group.workers.find({i})->as<standing::active>()->report = members::report_of(i, 11);
  group.workers.add({{2}, {2}, 0, 2, 3}, {10}, {});
  group.workers.find({2})->stands = standing::waiting{};
  const auto actions = group.copy.begin(group.workers);
  CHECK(asked(actions) == 0);
  // A joiner has nothing to save.
  CHECK(refused(actions) == workers{2});
}

TEST_CASE("the next is asked if one ends before it has saved, or could not") {
  members group{3};
  for (std::uint32_t i = 0; i < 2; ++i)
    CHECK(group.report(i, 11).empty());
  CHECK(asked(group.report(2, 11)) == 0);
  CHECK(asked(group.end(0)) == 1);
  CHECK(asked(group.finish(1, errc::io_error)) == 2);
  CHECK(group.finish(2, errc::aborted).empty());
}

TEST_CASE("members are waited for, but not long once one has the state") {
  members group{3};
  CHECK(group.tick(0s).empty());
  CHECK(group.report(1, 11).empty());
  CHECK(group.tick(2s).empty());
  CHECK(asked(group.tick(2'200ms)) == 1);
  // One that comes meanwhile waits, and is asked if it knows more.
  CHECK(group.report(0, 12).empty());
  CHECK(asked(group.finish(1, errc::aborted)) == 0);
  CHECK(group.finish(0, errc::aborted).empty());
  CHECK(refused(group.report(2, 12)) == workers{2});
}

TEST_CASE("nobody is waited for without end") {
  members silent{2};
  for (auto now = 0ms; now <= 10s; now += 200ms)
    CHECK(silent.tick(now).empty());
  CHECK(silent.tick(10'200ms).empty());
  CHECK(silent.tick(10'400ms).empty());
  CHECK(silent.tick(12'600ms).empty());
  CHECK(silent.copy.is_overdue());
  members slow{2};
  CHECK(slow.report(0, 11).empty());
  CHECK(asked(slow.report(1, 11)) == 0);
  CHECK(slow.tick(0s).empty());
  CHECK(slow.tick(60s).empty());
  CHECK(refused(slow.tick(61s)) == workers{0, 1});
}

TEST_CASE("a state that a checkpoint has is not saved again") {
  members group{2};
  CHECK(group.report(0, 10).empty());
  CHECK(refused(group.report(1, 10)) == workers{0, 1});
}

TEST_CASE("where the state is not to be kept, all are refused at once") {
  members group{2};
  group.copy = last_copy{run_ends};
  group.workers.find({0})->as<standing::active>()->report = members::report_of(0, 11);
  CHECK(refused(group.copy.begin(group.workers)) == workers{0});
  CHECK(refused(group.report(1, 11)) == workers{1});
}
