#include <troupe/actors/decisions/regroup.hpp>
#include <troupe/actors/decisions/run_coordinator.hpp>

#include <algorithm>
#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto run = run_id{"r"};

worker_progress after(std::uint64_t committed, std::uint64_t evaluations = 0) {
  return {{committed}, committed * 10, evaluations};
}

regroup_report report_of(std::uint32_t worker, decltype(regroup_report::position) position,
                         std::uint64_t generation = 1) {
  return {run, {generation}, {worker}, 0, position, {}};
}

/// Of a worker that has lost its group, and was in no step.
regroup_report elsewhere(std::uint32_t worker, std::uint64_t committed, std::uint64_t generation = 1) {
  return report_of(worker, worker_position::elsewhere{after(committed)}, generation);
}

/// Of a worker that was in the next step, and has its gradient.
regroup_report holding(std::uint32_t worker, std::uint64_t committed, std::uint64_t generation = 1) {
  return report_of(worker, worker_position::in_step{after(committed), true}, generation);
}

/// The end of one that was let go already: at most, another is tried again for which there was no capacity.
bool only_makes_room(const run_actions& actions) {
  return std::ranges::all_of(actions, [](const auto& x) { return std::holds_alternative<start_more>(x.what); });
}

/// Workers on two nodes, all in training.
run_coordinator training(std::uint32_t workers, failure_config failure = {}) {
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

worker_ended killed(std::uint32_t worker) {
  return {run, {worker}, 137, "killed by signal 9 (SIGKILL)", {}};
}

/// A training function has ended with an error.
worker_finished fails(std::uint32_t worker, std::uint64_t step, errc code, const std::string& text) {
  worker_finished result;
  result.run = run;
  result.generation = {1};
  result.worker = {worker};
  result.step = {step};
  result.reason.code = code;
  result.reason.message = text;
  return result;
}

worker_finished throws(std::uint32_t worker, std::uint64_t step, const std::string& text) {
  return fails(worker, step, errc::user_error, text);
}

worker_finished cut_off(std::uint32_t worker, std::uint64_t step) {
  return fails(worker, step, errc::aborted, "lost rank 1");
}

worker_finished finished(std::uint32_t worker) {
  auto result = fails(worker, 10, errc::none, "");
  result.state_sha256 = "state";
  return result;
}

template <class Action>
const Action* find(const run_actions& actions) {
  for (const auto& x : actions)
    if (const auto* found = std::get_if<Action>(&x.what))
      return found;
  return nullptr;
}

template <class Action>
std::size_t count(const run_actions& actions) {
  return static_cast<std::size_t>(
      std::ranges::count_if(actions, [](const run_action& x) { return std::holds_alternative<Action>(x.what); }));
}

/// How many are to be started; 0 if nobody says so.
std::uint32_t asked_for(const run_actions& actions) {
  CHECK(count<start_more>(actions) <= 1);
  const auto* found = find<start_more>(actions);
  return found == nullptr ? 0 : found->count;
}

/// Whether the one command is to come to the next boundary.
bool asks_for_regroup(const run_actions& actions, std::uint64_t generation = 1) {
  const auto* found = find<send_command>(actions);
  return found != nullptr && count<send_command>(actions) == 1 &&
         found->command.what == decltype(found->command.what){regroup_command{{generation}}};
}

bool says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  auto result = text.find(part) != std::string::npos;
  CHECK(result);
  return result;
}

run_plan plan_of(std::uint32_t worker, std::uint64_t generation = 1) {
  return {run, {generation}, {worker}, 100, 64, 1797, "digits", "w f32 [3]", 0, {}};
}

worker_ready ready_of(std::uint32_t worker) {
  return {run, {worker}, 100 + worker, "host", "c0ffee", "v3"};
}

/// Of a worker that has come to a boundary because a command said so.
regroup_report at_boundary(std::uint32_t worker, std::uint64_t committed, std::uint64_t generation = 1) {
  return report_of(worker, worker_position::between_steps{after(committed)}, generation);
}

/// Of a worker that was cut off in the middle of the next step.
regroup_report in_step(std::uint32_t worker, std::uint64_t committed, std::uint64_t generation = 1) {
  return report_of(worker, worker_position::in_step{after(committed)}, generation);
}

/// Of a joiner that asks for a place.
regroup_report asks_for_place(std::uint32_t worker, std::uint64_t generation = 0) {
  return report_of(worker, worker_position::without_state{}, generation);
}

run_coordinator::settings settings_for(std::uint32_t workers, worker_range range) {
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
void begin(run_coordinator& group, const std::vector<std::uint32_t>& workers, std::uint64_t generation = 1) {
  for (auto i : workers)
    static_cast<void>(group.on_ready(ready_of(i)));
  REQUIRE(group.training());
  for (auto i : workers)
    static_cast<void>(group.on_plan(plan_of(i, generation)));
  REQUIRE(group.accepted().size() == 1);
}

run_coordinator in_loop(const run_coordinator::settings& config) {
  std::vector<std::uint32_t> workers;
  for (const auto& place : config.places)
    workers.push_back(place.worker.value);
  auto result = run_coordinator{config};
  begin(result, workers);
  return result;
}

run_coordinator in_loop(std::uint32_t workers) {
  return in_loop(settings_for(workers, workers));
}

/// A process was started, and comes as far as its first loop.
void prepare(run_coordinator& group, std::uint32_t worker, std::uint32_t node) {
  group.on_started({{{worker}, {worker}, node, 0, 1}});
  const auto begins = group.on_ready(ready_of(worker));
  REQUIRE(find<begin_joiner>(begins));
  CHECK(find<begin_joiner>(begins)->worker == worker_id{worker});
  REQUIRE(find<accept_plan_of>(group.on_plan(plan_of(worker, 0))));
}

/// Those of the workers that are named come to the boundary; returns what the last of them leads to.
run_actions gather(run_coordinator& group, const std::vector<std::uint32_t>& workers, std::uint64_t committed,
                   std::uint64_t generation = 1) {
  run_actions last;
  for (auto i : workers) {
    CHECK(last.empty());
    last = group.on_report(at_boundary(i, committed, generation));
  }
  return last;
}

std::vector<std::uint32_t> workers_of(const form_generation& next) {
  std::vector<std::uint32_t> result;
  for (std::uint32_t rank = 0; rank < next.places.size(); ++rank) {
    CHECK(next.places[rank].rank == rank_id{rank});
    result.push_back(next.places[rank].worker.value);
  }
  return result;
}

using ids = std::vector<std::uint32_t>;

} // namespace

TEST_CASE("if one has committed the step, all apply it") {
  const auto reports = std::vector{holding(0, 6), elsewhere(1, 7), holding(2, 6)};
  const auto decision = decide_regroup(reports);
  REQUIRE(decision);
  CHECK(decision->commit_point == step_id{7});
  CHECK(decision->commands_agreed == 70);
  CHECK(decision->reason.find("worker 1 has committed step 7") != std::string::npos);
}

TEST_CASE("if nobody has committed the step, all compute it again, whoever holds its gradient") {
  const auto decision = decide_regroup(std::vector{holding(0, 6), elsewhere(1, 6), elsewhere(2, 6)});
  REQUIRE(decision);
  CHECK(decision->commit_point == step_id{6});
  CHECK(decision->commands_agreed == 60);
  CHECK(decision->reason.find("nobody has committed step 7") != std::string::npos);
}

TEST_CASE("reports that cannot be are not decided about") {
  CHECK_FALSE(decide_regroup({}));
  CHECK_FALSE(decide_regroup(std::vector{elsewhere(0, 7), asks_for_place(1)}));
  CHECK(decide_regroup(std::vector{elsewhere(0, 7), elsewhere(1, 6)}).error().code == errc::internal);
  CHECK(decide_regroup(std::vector{elsewhere(0, 8), holding(1, 6)}).error().code == errc::internal);
  const auto ahead = report_of(0, worker_position::elsewhere{after(7, 2)});
  CHECK(decide_regroup(std::vector{ahead, elsewhere(1, 7)}).error().code == errc::internal);
}

TEST_CASE("an evaluation that one has finished is not done again") {
  const auto ahead = report_of(2, worker_position::elsewhere{after(7, 1)});
  const auto decision = decide_regroup(std::vector{elsewhere(0, 7), ahead});
  REQUIRE(decision);
  CHECK(decision->evaluations == 1);
  CHECK(decision->evaluation_source == worker_id{2});
  CHECK_FALSE(decide_regroup(std::vector{ahead})->evaluation_source);
}

TEST_CASE("who is left when a worker is killed forms a generation once all have reported") {
  auto group = training(4);
  const auto first = group.on_ended(killed(1));
  REQUIRE(find<abort_generation>(first));
  CHECK(find<abort_generation>(first)->reason.code == errc::aborted);
  CHECK(group.goes_on());
  CHECK(group.on_report(elsewhere(0, 3)).empty());
  CHECK(group.on_report(elsewhere(3, 3)).empty());
  CHECK(group.awaited_reports() == "worker 2 (rank 2) on host");
  const auto last = group.on_report(holding(2, 3));
  REQUIRE(find<form_generation>(last));
  const auto& places = find<form_generation>(last)->places;
  // Ranks close up; the worker that is alone on its node says so.
  CHECK(places == std::vector<worker_place>{{{0}, {0}, 0, 0, 1}, {{2}, {1}, 1, 0, 2}, {{3}, {2}, 1, 1, 2}});
  CHECK(find<form_generation>(last)->decision.commit_point == step_id{3});
  REQUIRE(group.failures().size() == 1);
  CHECK(group.failures()[0].worker == worker_id{1});
  CHECK(group.training());
  CHECK(group.awaited_reports().empty());
}

TEST_CASE("one that is lost while others report is not waited for, down to one") {
  auto group = training(3);
  CHECK(find<abort_generation>(group.on_ended(killed(0))));
  CHECK(group.on_report(elsewhere(1, 3)).empty());
  auto formed = group.on_ended(killed(2));
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->places == std::vector<worker_place>{{{1}, {0}, 0, 0, 1}});
  // And again in the new generation: nobody is left, so that it begins again from a checkpoint.
  CHECK(find<restart_run>(group.on_ended(killed(1))));
  CHECK(group.failures().size() == 3);
}

TEST_CASE("when nobody is left and the budget is used up, the run ends") {
  auto group = training(2, {1});
  for (std::uint32_t i = 0; i < 2; ++i)
    group.on_applied({i}, {3});
  static_cast<void>(group.on_ended(killed(0)));
  CHECK(find<form_generation>(group.on_report(elsewhere(1, 3))));
  auto end = group.on_ended(killed(1));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->status == run_status::failed);
  CHECK(find<conclude>(end)->reason.message.find("failure number 2 without a new step after step 3, more than "
                                                 "failure.max_failures (1)") != std::string::npos);
  CHECK(group.failures().size() == 2);
}

TEST_CASE("a worker that finds its group gone before its node tells why begins the regroup") {
  auto group = training(3, {1});
  auto told = elsewhere(0, 3);
  told.reason = {errc::aborted, "lost rank 2"};
  CHECK(find<abort_generation>(group.on_report(told)));
  // The loss behind it is the same failure, and the budget holds.
  CHECK(find<conclude>(group.on_ended(killed(2))) == nullptr);
  CHECK(find<form_generation>(group.on_report(elsewhere(1, 3))));
}

TEST_CASE("a lost node's workers are lost together") {
  auto group = training(4);
  CHECK(group.on_report(elsewhere(0, 3)).size() == 1);
  CHECK(group.on_report(elsewhere(2, 3)).empty());
  CHECK(group.on_report(elsewhere(3, 3)).empty());
  const auto actions = group.on_node_lost(1, "10.0.0.2:4000");
  CHECK(find<form_generation>(actions) == nullptr);
  const auto formed = group.on_report(elsewhere(1, 3));
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->places.size() == 2);
  CHECK(group.failures().size() == 2);
}

TEST_CASE("a worker that has finished is no loss, and reports nothing") {
  auto group = training(3);
  CHECK(group.on_finished(finished(0)).empty());
  CHECK(group.on_ended(killed(0)).empty());
  CHECK(group.failures().size() == 1);
  CHECK(find<abort_generation>(group.on_ended(killed(1))));
  CHECK(find<form_generation>(group.on_report(elsewhere(2, 10))));
  CHECK(find<release_all>(group.on_finished(finished(2))));
}

TEST_CASE("failures without a new step beyond the budget end the run, and earlier ones are forgotten") {
  auto group = training(8, {1});
  for (std::uint32_t lost = 0; lost < 5; ++lost) {
    group.on_applied({7}, {lost + 1});
    CHECK(find<conclude>(group.on_ended(killed(lost))) == nullptr);
    for (std::uint32_t i = lost + 1; i < 8; ++i)
      static_cast<void>(group.on_report(elsewhere(i, lost + 1, lost + 1)));
    REQUIRE(group.training());
  }
  const auto over = group.on_ended(killed(5));
  CHECK(find<abort_all>(over));
  CHECK_FALSE(group.goes_on());
}

TEST_CASE("however many workers end before the others have formed anew, it is one failure") {
  auto group = training(8, {1});
  for (std::uint32_t lost = 0; lost < 7; ++lost)
    static_cast<void>(group.on_ended(killed(lost)));
  CHECK(find<form_generation>(group.on_report(elsewhere(7, 3))));
  CHECK(group.failures().size() == 7);
}

TEST_CASE("contradicting reports end the run") {
  auto group = training(3);
  CHECK(find<abort_generation>(group.on_ended(killed(0))));
  CHECK(group.on_report(elsewhere(1, 3)).empty());
  CHECK(find<abort_all>(group.on_report(elsewhere(2, 5))));
}

TEST_CASE("where the training functions do not survive a loss, that loss is the cause") {
  auto group = training(3);
  CHECK(find<abort_generation>(group.on_ended(killed(1))));
  CHECK(find<abort_all>(group.on_finished(cut_off(0, 3))));
  const auto over = group.on_finished(cut_off(2, 3));
  REQUIRE(find<conclude>(over));
  CHECK(find<conclude>(over)->reason.code == errc::worker_lost);
  REQUIRE(group.failures().size() == 3);
  CHECK_FALSE(group.failures()[0].consequence);
  CHECK(group.failures()[1].consequence);
  CHECK(group.failures()[2].consequence);
}

// -- who comes ------------------------------------------------------------------------------------------------------

TEST_CASE("a lost worker is replaced: the others go on without it, and let the new one in between two steps") {
  auto group = in_loop(3);
  const auto lost = group.on_ended(killed(1));
  CHECK(find<abort_generation>(lost));
  CHECK(asked_for(lost) == 1);
  CHECK(group.on_report(in_step(0, 4)).empty());
  const auto without = group.on_report(in_step(2, 4));
  REQUIRE(find<form_generation>(without));
  CHECK(workers_of(*find<form_generation>(without)) == ids{0, 2});
  const auto& first = find<form_generation>(without)->record;
  CHECK(first.run == run);
  CHECK(first.generation == generation_id{2});
  CHECK(first.attempt == 1);
  CHECK(first.workers == 2);
  CHECK(first.commit_point == step_id{4});
  CHECK(first.steps_redone == 1);
  CHECK(first.interrupted_step);
  CHECK(says(first.reason, "worker 1 (rank 1) ended: killed by signal 9 (SIGKILL)"));

  prepare(group, 3, 1);
  CHECK(group.expects({3}) == false);
  CHECK(asks_for_regroup(group.on_report(asks_for_place(3)), 2));
  // Asking again is harmless.
  CHECK(group.on_report(asks_for_place(3)).empty());
  CHECK(group.on_report(at_boundary(2, 9, 2)).empty());
  const auto with = group.on_report(at_boundary(0, 9, 2));
  REQUIRE(find<form_generation>(with));
  const auto& joined = *find<form_generation>(with);
  CHECK(workers_of(joined) == ids{0, 2, 3});
  CHECK(joined.joiners == std::vector{worker_id{3}});
  CHECK(joined.released.empty());
  CHECK(joined.decision.commit_point == step_id{9});
  CHECK(joined.record.generation == generation_id{3});
  CHECK(joined.record.steps_redone == 0);
  CHECK_FALSE(joined.record.interrupted_step);
  CHECK(says(joined.record.reason, "worker 3 (rank 3) joins"));
  CHECK(group.failures().size() == 1);
  // From now on it is as the others are.
  CHECK(asked_for(group.on_ended(killed(3))) == 1);
  CHECK(group.failures().back().step == step_id{10});
}

TEST_CASE("who has come compares its whole state with one who was there, until a step counts for it") {
  auto group = in_loop(3);
  using workers = std::vector<worker_id>;
  auto compared_after = [&](const run_actions& actions) {
    REQUIRE(find<form_generation>(actions));
    return find<form_generation>(actions)->compared;
  };
  // Nobody has committed a step yet: some may have left the first comparison, and others not.
  static_cast<void>(group.on_ended(killed(2)));
  static_cast<void>(group.on_report(in_step(0, 0)));
  CHECK(compared_after(group.on_report(in_step(1, 0))) == workers{{0}, {1}});
  static_cast<void>(group.on_ended(killed(1)));
  CHECK(compared_after(group.on_report(in_step(0, 4, 2))).empty());
  prepare(group, 3, 0);
  CHECK(asks_for_regroup(group.on_report(asks_for_place(3)), 3));
  CHECK(compared_after(group.on_report(at_boundary(0, 6, 3))) == workers{{3}, {0}});
  static_cast<void>(group.on_ended(killed(3)));
  CHECK(compared_after(group.on_report(in_step(0, 6, 4))).empty());
  CHECK(asks_for_regroup(group.on_resize(1)) == false);
  static_cast<void>(group.on_pause());
  static_cast<void>(group.on_resume());
  CHECK(compared_after(group.on_report(at_boundary(0, 7, 5))).empty());
}

TEST_CASE("a joiner takes its rank beside the workers of its node, and nobody before it moves back") {
  auto group = in_loop(4);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0, 2, 3}, 5));
  prepare(group, 4, 0);
  prepare(group, 5, 2);
  static_cast<void>(group.on_report(asks_for_place(5)));
  static_cast<void>(group.on_report(asks_for_place(4)));
  const auto formed = gather(group, {0, 2, 3}, 7, 2);
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->places ==
        std::vector<worker_place>{
            {{0}, {0}, 0, 0, 2}, {{4}, {1}, 0, 1, 2}, {{2}, {2}, 1, 0, 2}, {{3}, {3}, 1, 1, 2}, {{5}, {4}, 2, 0, 1}});
}

TEST_CASE("whoever asks while the others are in the middle of a step waits for the next boundary") {
  auto group = in_loop(3);
  static_cast<void>(group.on_ended(killed(1)));
  prepare(group, 3, 1);
  CHECK(group.on_report(asks_for_place(3)).empty());
  CHECK(group.on_report(in_step(0, 4)).empty());
  const auto formed = group.on_report(in_step(2, 4));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 2});
  // And is not forgotten.
  CHECK(asks_for_regroup(formed, 2));
  const auto with = gather(group, {0, 2}, 5, 2);
  REQUIRE(find<form_generation>(with));
  CHECK(workers_of(*find<form_generation>(with)) == ids{0, 2, 3});
}

TEST_CASE("a worker that joins before the others have agreed on a plan is compared when they have") {
  auto group = training(2);
  static_cast<void>(group.on_ended(killed(1)));
  group.on_started({{{2}, {1}, 0, 0, 1}});
  static_cast<void>(group.on_report(elsewhere(0, 0)));
  REQUIRE(group.training());
  auto joins = ready_of(2);
  joins.build_id.clear();
  CHECK(group.on_ready(joins).empty());
  const auto accepted = group.on_plan(plan_of(0, 2));
  CHECK(find<accept_plans>(accepted));
  REQUIRE(find<begin_joiner>(accepted));
  CHECK(find<begin_joiner>(accepted)->worker == worker_id{2});
}

TEST_CASE("a joiner that is of another kind is refused, and costs the others nothing") {
  for (const auto* what : {"build", "numerics", "plan"}) {
    CAPTURE(what);
    auto group = in_loop(3);
    static_cast<void>(group.on_ended(killed(1)));
    static_cast<void>(gather(group, {0, 2}, 4));
    REQUIRE(group.training());
    group.on_started({{{3}, {2}, 0, 1, 2}});
    auto joins = ready_of(3);
    auto code = errc::mismatch;
    auto refused = run_actions{};
    if (what == std::string{"build"}) {
      joins.build_id = "decaf";
      code = errc::program_mismatch;
      refused = group.on_ready(joins);
      REQUIRE(find<fence_worker>(refused));
      CHECK(find<fence_worker>(refused)->worker == worker_id{3});
      CHECK(says(find<fence_worker>(refused)->reason, "decaf"));
    } else if (what == std::string{"numerics"}) {
      joins.numerics = "v4";
      refused = group.on_ready(joins);
      REQUIRE(find<fence_worker>(refused));
      CHECK(says(find<fence_worker>(refused)->reason, "v4 / v3"));
    } else {
      CHECK(find<begin_joiner>(group.on_ready(joins)));
      auto plan = plan_of(3, 0);
      plan.batch_samples = 65;
      refused = group.on_plan(plan);
      REQUIRE(find<refuse_plans>(refused));
      CHECK(find<refuse_plans>(refused)->worker == worker_id{3});
      CHECK(says(find<refuse_plans>(refused)->reason.message, "batch size: 64 in this run, 65 on worker 3"));
      REQUIRE(find<release_one>(refused));
    }
    // Another one may do better.
    CHECK(asked_for(refused) == 1);
    CHECK(find<abort_generation>(refused) == nullptr);
    CHECK(find<send_command>(refused) == nullptr);
    CHECK(group.training());
    CHECK(group.exact_hosts());
    REQUIRE(group.failures().size() == 2);
    CHECK(group.failures()[1].worker == worker_id{3});
    CHECK(group.failures()[1].reason.code == code);
    // It is none of the run any more, whatever it says and however it ends.
    CHECK_FALSE(group.expects({3}));
    CHECK(group.on_ready(ready_of(3)).empty());
    CHECK(find<refuse_report>(group.on_report(asks_for_place(3))));
    CHECK(only_makes_room(group.on_ended(killed(3))));
    CHECK(group.failures().size() == 2);
  }
}

TEST_CASE("a joiner of another kind of host is taken in where that is allowed, and the result says so") {
  auto config = settings_for(2, 2);
  config.allow_mixed_hosts = true;
  auto group = in_loop(config);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0}, 4));
  group.on_started({{{2}, {1}, 0, 1, 2}});
  auto joins = ready_of(2);
  joins.numerics = "v4";
  CHECK(group.exact_hosts());
  CHECK(find<begin_joiner>(group.on_ready(joins)));
  CHECK_FALSE(group.exact_hosts());
}

TEST_CASE("joiners that end by themselves, three in a row, are tried again later, or when there is new capacity") {
  auto group = in_loop(3);
  CHECK(asked_for(group.on_ended(killed(1))) == 1);
  static_cast<void>(gather(group, {0, 2}, 4));
  const auto crashes = [&](std::uint32_t worker) {
    group.on_started({{{worker}, {2}, 0, 1, 2}});
    return group.on_ended({run, {worker}, 127, "exit code 127", {"libfoo.so: not found"}});
  };
  CHECK(asked_for(crashes(3)) == 1);
  CHECK(asked_for(crashes(4)) == 1);
  const auto third = crashes(5);
  CHECK(asked_for(third) == 0);
  REQUIRE(find<warn>(third));
  CHECK(says(third.front().why, "3 workers in a row"));
  CHECK(says(third.front().why, "libfoo.so: not found"));
  CHECK(group.training());
  // The next loss of a member is put up with, and does not begin it anew.
  CHECK(asked_for(group.on_ended(killed(2))) == 0);
  static_cast<void>(gather(group, {0}, 5, 2));
  CHECK(asked_for(group.on_tick(run_time{} + 1h)) == 0);
  CHECK(asked_for(group.on_tick(run_time{} + 1h + 4s)) == 0);
  CHECK(asked_for(group.on_tick(run_time{} + 1h + 5s)) == 2);
  CHECK(asked_for(crashes(7)) == 0);
  CHECK(asked_for(group.on_capacity()) == 2);
  CHECK(asked_for(crashes(6)) == 2);
}

TEST_CASE("a joiner that got a place, or was killed from outside, does not count as one that cannot join") {
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0}, 4));
  auto generation = std::uint64_t{2};
  auto next = std::uint32_t{2};
  for (auto round = 0; round < 3; ++round) {
    for (auto crash = 0; crash < 2; ++crash, ++next) {
      group.on_started({{{next}, {1}, 0, 1, 2}});
      CHECK(asked_for(group.on_ended({run, {next}, 1, "exit code 1", {}})) == 1);
    }
    prepare(group, next, 0);
    static_cast<void>(group.on_report(asks_for_place(next)));
    REQUIRE(find<form_generation>(gather(group, {0}, 5 + generation, generation)));
    ++generation;
    CHECK(asked_for(group.on_ended(killed(next))) == 1);
    static_cast<void>(gather(group, {0}, 5 + generation, generation));
    ++generation;
    ++next;
  }
  for (auto round = 0; round < 5; ++round, ++next) {
    group.on_started({{{next}, {1}, 0, 1, 2}});
    CHECK(asked_for(group.on_ended(killed(next))) == 1);
  }
}

TEST_CASE("nobody is replaced where that is not wanted, after a stop, or at the end") {
  auto config = settings_for(3, 3);
  config.failure.replace_lost = false;
  auto never = in_loop(config);
  CHECK(asked_for(never.on_ended(killed(1))) == 0);
  CHECK(asked_for(never.on_capacity()) == 0);
  auto stopped = in_loop(3);
  static_cast<void>(stopped.on_stop({false}));
  CHECK(asked_for(stopped.on_ended(killed(1))) == 0);
  auto ending = in_loop(3);
  static_cast<void>(ending.on_finished(finished(0)));
  CHECK(asked_for(ending.on_ended(killed(1))) == 0);
}

TEST_CASE("the workers of a lost node are asked for once, not once for each") {
  auto group = in_loop(4);
  CHECK(asked_for(group.on_node_lost(1, "10.0.0.2:4000")) == 2);
  // Joiners, too.
  static_cast<void>(gather(group, {0, 1}, 4));
  group.on_started({{{4}, {2}, 2, 0, 1}, {{5}, {3}, 2, 1, 1}});
  const auto again = group.on_node_lost(2, "10.0.0.3:4000");
  CHECK(asked_for(again) == 2);
  CHECK(find<abort_generation>(again) == nullptr);
  CHECK(group.failures().size() == 4);
}

TEST_CASE("a joiner that is lost while the state comes to it is dropped like any other") {
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0}, 4));
  prepare(group, 2, 0);
  static_cast<void>(group.on_report(asks_for_place(2)));
  REQUIRE(find<form_generation>(gather(group, {0}, 6, 2)));
  const auto lost = group.on_ended(killed(2));
  CHECK(find<abort_generation>(lost));
  CHECK(asked_for(lost) == 1);
  const auto formed = gather(group, {0}, 6, 3);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0});
}

TEST_CASE("one that has a place but not the state yet reports without it, and gets it at a boundary only") {
  auto group = in_loop(3);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0, 2}, 4));
  prepare(group, 3, 0);
  static_cast<void>(group.on_report(asks_for_place(3)));
  REQUIRE(find<form_generation>(gather(group, {0, 2}, 6, 2)));
  // The state was on its way when another is killed, and the third has gone on into a step.
  CHECK(find<abort_generation>(group.on_ended(killed(2))));
  auto without_state = asks_for_place(3);
  without_state.generation = {3};
  CHECK(group.on_report(without_state).empty());
  const auto formed = group.on_report(in_step(0, 6, 3));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0});
  CHECK(asks_for_regroup(formed, 4));
  const auto with = gather(group, {0}, 7, 4);
  REQUIRE(find<form_generation>(with));
  CHECK(workers_of(*find<form_generation>(with)) == ids{0, 3});
  CHECK(find<form_generation>(with)->joiners == std::vector{worker_id{3}});
}

TEST_CASE("one that is to leave and has no state yet is let go where it cannot get it") {
  auto group = in_loop(3);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0, 2}, 4));
  prepare(group, 3, 1);
  static_cast<void>(group.on_report(asks_for_place(3)));
  REQUIRE(find<form_generation>(gather(group, {0, 2}, 6, 2)));
  static_cast<void>(group.on_node_leaving(1, false));
  static_cast<void>(group.on_ended(killed(2)));
  CHECK(group.on_report(asks_for_place(3, 3)).empty());
  const auto formed = group.on_report(in_step(0, 6, 3));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0});
  CHECK(find<form_generation>(formed)->released == std::vector<worker_id>{{3}});
  // Nobody waits whom the next boundary would let in.
  CHECK_FALSE(find<send_command>(formed));
}

TEST_CASE("if all who had the state die while a joiner waits for it, the run starts again") {
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0}, 4));
  prepare(group, 2, 0);
  static_cast<void>(group.on_report(asks_for_place(2)));
  REQUIRE(find<form_generation>(gather(group, {0}, 6, 2)));
  CHECK(find<restart_run>(group.on_ended(killed(0))) == nullptr);
  auto without_state = asks_for_place(2);
  without_state.generation = {3};
  CHECK(find<restart_run>(group.on_report(without_state)));
}

TEST_CASE("joiners that are under way at the end are not waited for") {
  auto completed = in_loop(2);
  completed.on_started({{{2}, {2}, 0, 0, 1}});
  static_cast<void>(completed.on_finished(finished(0)));
  CHECK(find<release_all>(completed.on_finished(finished(1))));
  CHECK(completed.on_ended({run, {0}, 0, "exit code 0", {}}).empty());
  const auto over = completed.on_ended({run, {1}, 0, "exit code 0", {}});
  REQUIRE(find<conclude>(over));
  CHECK(find<conclude>(over)->status == run_status::completed);

  auto failed = in_loop(2);
  failed.on_started({{{2}, {2}, 0, 0, 1}});
  static_cast<void>(failed.on_finished(throws(0, 0, "out of range")));
  const auto end = failed.on_finished(cut_off(1, 0));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.message == "out of range");
}

// -- who goes -------------------------------------------------------------------------------------------------------

TEST_CASE("the workers of a node that leaves go when their replacements have come, and no step is redone") {
  auto group = in_loop(4);
  const auto leaving = group.on_node_leaving(1, true);
  CHECK(find<warn>(leaving));
  CHECK(asked_for(leaving) == 2);
  CHECK(find<send_command>(leaving) == nullptr);
  prepare(group, 4, 0);
  prepare(group, 5, 0);
  CHECK(group.on_report(asks_for_place(4)).empty());
  CHECK(asks_for_regroup(group.on_report(asks_for_place(5))));
  const auto formed = gather(group, {0, 1, 2, 3}, 8);
  REQUIRE(find<form_generation>(formed));
  const auto& next = *find<form_generation>(formed);
  CHECK(workers_of(next) == ids{0, 1, 4, 5});
  CHECK(next.released == std::vector{worker_id{2}, worker_id{3}});
  CHECK(next.record.steps_redone == 0);
  CHECK_FALSE(next.record.interrupted_step);
  CHECK(group.on_ended({run, {2}, 0, "exit code 0", {}}).empty());
  CHECK(only_makes_room(group.on_ended(killed(3))));
  CHECK(group.on_node_lost(1, "10.0.0.2:4000").empty());
  CHECK(group.failures().empty());
  CHECK(group.training());
}

TEST_CASE("the workers of a node that is taken back stay, and replacements that have come are not needed") {
  auto group = in_loop(4);
  CHECK(asked_for(group.on_node_leaving(1, true)) == 2);
  SUBCASE("before any replacement") {
    CHECK(asked_for(group.on_node_resumed(1)) == 0);
    CHECK(group.on_drain_timeout().empty());
  }
  SUBCASE("with replacements on their way") {
    group.on_started({{{4}, {4}, 0, 0, 1}, {{5}, {5}, 0, 0, 1}});
    static_cast<void>(group.on_node_resumed(1));
    CHECK(group.on_drain_timeout().empty());
  }
  SUBCASE("after they have gone") {
    static_cast<void>(group.on_node_leaving(1, false));
    static_cast<void>(gather(group, {0, 1, 2, 3}, 8));
    CHECK(asked_for(group.on_node_resumed(1)) == 2);
  }
  CHECK(group.failures().empty());
}

TEST_CASE("without capacity elsewhere the workers of a node that leaves go at the next boundary") {
  auto group = in_loop(4);
  const auto leaving = group.on_node_leaving(1, false);
  CHECK(asks_for_regroup(leaving));
  CHECK(asked_for(leaving) == 0);
  const auto formed = gather(group, {0, 1, 2, 3}, 8);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1});
  CHECK(find<form_generation>(formed)->released.size() == 2);
  CHECK(group.failures().empty());
  CHECK(group.on_drain_timeout().empty());
  // Who goes is missed when there is capacity again.
  CHECK(asked_for(group.on_capacity()) == 2);
}

TEST_CASE("replacements that do not come in time are not waited for") {
  auto group = in_loop(4);
  CHECK(asked_for(group.on_node_leaving(1, true)) == 2);
  group.on_started({{{4}, {4}, 0, 0, 1}});
  CHECK(asks_for_regroup(group.on_drain_timeout()));
  CHECK(group.on_drain_timeout().empty());
  const auto formed = gather(group, {0, 1, 2, 3}, 8);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1});
}

TEST_CASE("who leaves goes with the next loss only where nobody is in the middle of a step") {
  auto group = in_loop(4);
  CHECK(asks_for_regroup(group.on_node_leaving(1, false)));
  CHECK(find<abort_generation>(group.on_ended(killed(0))));
  CHECK(group.on_report(in_step(1, 5)).empty());
  CHECK(group.on_report(in_step(2, 5)).empty());
  const auto formed = group.on_report(in_step(3, 5));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{1, 2, 3});
  CHECK(asks_for_regroup(formed, 2));
  const auto drained = gather(group, {1, 2, 3}, 6, 2);
  REQUIRE(find<form_generation>(drained));
  CHECK(workers_of(*find<form_generation>(drained)) == ids{1});
}

TEST_CASE("when all workers are on the node that leaves, they stay until others have the state") {
  auto group = in_loop(2);
  CHECK(asked_for(group.on_node_leaving(0, true)) == 2);
  prepare(group, 2, 1);
  CHECK(asks_for_regroup(group.on_report(asks_for_place(2))));
  const auto joined = gather(group, {0, 1}, 8);
  REQUIRE(find<form_generation>(joined));
  CHECK(workers_of(*find<form_generation>(joined)) == ids{0, 1, 2});
  CHECK(find<form_generation>(joined)->released.empty());
  CHECK(asks_for_regroup(joined, 2));
  const auto drained = gather(group, {0, 1, 2}, 9, 2);
  REQUIRE(find<form_generation>(drained));
  CHECK(workers_of(*find<form_generation>(drained)) == ids{2});
  CHECK(find<form_generation>(drained)->released.size() == 2);
}

TEST_CASE("when the last node leaves, the run stands in a checkpoint, and starts again where there is capacity") {
  auto group = in_loop(2);
  const auto leaving = group.on_node_leaving(0, false);
  REQUIRE(leaving.size() == 2);
  const auto* first = std::get_if<send_command>(&leaving[0].what);
  const auto* second = std::get_if<send_command>(&leaving[1].what);
  REQUIRE(first);
  REQUIRE(second);
  CHECK(std::holds_alternative<regroup_command>(first->command.what));
  CHECK(std::holds_alternative<checkpoint_command>(second->command.what));
  CHECK(second->command.sequence == first->command.sequence + 1);
  const auto gone = gather(group, {0, 1}, 8);
  CHECK(count<refuse_report>(gone) == 2);
  CHECK(count<release_one>(gone) == 2);
  CHECK(find<restart_run>(gone));
  CHECK(group.attempt() == 2);
  CHECK(group.failures().empty());
}

TEST_CASE("joiners that come about the same time are let in together; one that takes longer is not waited for") {
  const auto start = run_coordinator::time{} + 1h;
  auto group = in_loop(4);
  static_cast<void>(group.on_node_lost(1, "10.0.0.2:4000"));
  static_cast<void>(gather(group, {0, 1}, 4));
  prepare(group, 4, 0);
  prepare(group, 5, 0);
  CHECK(group.on_report(asks_for_place(4), start).empty());
  CHECK(group.on_tick(start + 400ms).empty());
  CHECK(asks_for_regroup(group.on_tick(start + 600ms), 2));
  CHECK(group.on_tick(start + 800ms).empty());
  const auto formed = gather(group, {0, 1}, 6, 2);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1, 4});
  CHECK(asks_for_regroup(group.on_report(asks_for_place(5), start + 2s), 3));
}

TEST_CASE("a joiner that comes to a loop that the others have left goes on to the next, with what they have found") {
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  REQUIRE(find<form_generation>(group.on_report(in_step(0, 7))));
  prepare(group, 2, 0);
  auto next_loop = plan_of(0, 2);
  next_loop.loop = 1;
  next_loop.evaluations = {{0.25}};
  // Nobody is replaced for it.
  CHECK(group.on_plan(next_loop).size() == 1);
  const auto told = group.on_report(asks_for_place(2));
  REQUIRE(told.size() == 1);
  CHECK(std::get<skip_loop>(told[0].what) == skip_loop{{2}, {{0.25}}});
  auto plan = plan_of(2, 0);
  plan.loop = 1;
  REQUIRE(find<accept_plan_of>(group.on_plan(plan)));
  // One that waits already is told at once, as often as it takes.
  static_cast<void>(group.on_pause());
  CHECK(group.on_report(asks_for_place(2)).empty());
  next_loop.loop = 2;
  next_loop.evaluations = {};
  const auto accepted = group.on_plan(next_loop);
  REQUIRE(find<skip_loop>(accepted));
  CHECK(find<skip_loop>(accepted)->evaluations.empty());
  plan.loop = 2;
  REQUIRE(find<accept_plan_of>(group.on_plan(plan)));
  static_cast<void>(group.on_resume());
  CHECK(group.on_report(asks_for_place(2)).empty());
  const auto formed = group.on_report(at_boundary(0, 9, 2));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 2});
}

TEST_CASE("a failure found at a boundary is not taken for the regroup that was asked for") {
  auto group = in_loop(3);
  static_cast<void>(group.on_pause());
  auto failed = at_boundary(0, 5);
  failed.reason = {errc::aborted, "rank 2 is gone"};
  CHECK(find<abort_generation>(group.on_report(failed)));
}

TEST_CASE("a joiner that does not join in time is killed, and another one is started") {
  const auto start = run_coordinator::time{} + 1h;
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0}, 4));
  group.on_started({{{2}, {1}, 0, 0, 1}}, start);
  CHECK(group.on_tick(start + 29s).empty());
  const auto late = group.on_tick(start + 31s);
  REQUIRE(find<fence_worker>(late));
  CHECK(find<fence_worker>(late)->worker == worker_id{2});
  CHECK(asked_for(late) == 1);
  CHECK(group.failures().back().reason.code == errc::timed_out);
  CHECK(group.on_tick(start + 32s).empty());
  CHECK(only_makes_room(group.on_ended(killed(2))));
}

TEST_CASE("joiners on a node that leaves are not waited for, and a node without workers may go") {
  auto group = in_loop(4);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0, 2, 3}, 4));
  group.on_started({{{4}, {3}, 2, 0, 1}});
  CHECK(group.on_node_leaving(7, true).empty());
  const auto leaving = group.on_node_leaving(2, true);
  REQUIRE(find<fence_worker>(leaving));
  CHECK(find<fence_worker>(leaving)->worker == worker_id{4});
  CHECK(asked_for(leaving) == 1);
  CHECK(only_makes_room(group.on_ended(killed(4))));
  CHECK(group.failures().size() == 1);
}

// -- other sizes ----------------------------------------------------------------------------------------------------

TEST_CASE("what a training function with a custom loop cannot do is told, and changes nothing") {
  auto group = run_coordinator{settings_for(2, 2)};
  for (std::uint32_t i = 0; i < 2; ++i)
    static_cast<void>(group.on_ready(ready_of(i)));
  run_plan plan;
  plan.run = run;
  plan.generation = {1};
  for (std::uint32_t i = 0; i < 2; ++i) {
    plan.worker = {i};
    static_cast<void>(group.on_plan(plan));
  }
  REQUIRE(group.accepted().size() == 1);
  for (const auto& told : {group.on_pause(), group.on_resize(1), group.on_checkpoint_request()}) {
    REQUIRE(told.size() == 1);
    CHECK(std::holds_alternative<warn>(told[0].what));
    CHECK(says(told[0].why, "a custom loop"));
  }
  CHECK(group.training());
}

TEST_CASE("nobody is started for, or asked to leave, a loop of the training function's own") {
  auto group = run_coordinator{settings_for(2, {1, 4})};
  for (std::uint32_t i = 0; i < 2; ++i)
    static_cast<void>(group.on_ready(ready_of(i)));
  // It was started before anybody knew.
  group.on_started({{{2}, {2}, 1, 0, 1}});
  run_plan plan;
  plan.run = run;
  plan.generation = {1};
  plan.worker = {0};
  static_cast<void>(group.on_plan(plan));
  plan.worker = {1};
  const auto accepted = group.on_plan(plan);
  REQUIRE(find<fence_worker>(accepted));
  CHECK(find<fence_worker>(accepted)->worker == worker_id{2});
  CHECK(asked_for(accepted) == 0);
  CHECK(group.on_capacity().empty());
  const auto leaving = group.on_node_leaving(0, true);
  REQUIRE(leaving.size() == 1);
  CHECK(std::holds_alternative<warn>(leaving[0].what));
  CHECK(asked_for(group.on_ended(killed(1))) == 0);
}

TEST_CASE("who was to go because fewer are wanted stays when the others go with their node") {
  auto group = in_loop(4);
  CHECK(asks_for_regroup(group.on_resize(2)));
  // Workers 0 and 1, who were to stay, are there.
  static_cast<void>(group.on_node_leaving(0, false));
  const auto formed = gather(group, {0, 1, 2, 3}, 5);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{2, 3});
  CHECK(find<restart_run>(formed) == nullptr);
}

TEST_CASE("a run that is to have more workers starts them, and lets them in") {
  auto group = in_loop(2);
  CHECK(asked_for(group.on_resize(4)) == 2);
  CHECK(group.on_resize(0).empty());
  prepare(group, 2, 1);
  prepare(group, 3, 1);
  CHECK(group.on_resize(4).empty());
  static_cast<void>(group.on_report(asks_for_place(2)));
  static_cast<void>(group.on_report(asks_for_place(3)));
  const auto formed = gather(group, {0, 1}, 5);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1, 2, 3});
  CHECK(group.failures().empty());
}

TEST_CASE("a run that is to have fewer workers lets the last ranks go, and does not replace them") {
  auto group = in_loop(4);
  CHECK(asks_for_regroup(group.on_resize(2)));
  const auto formed = gather(group, {3, 1, 0, 2}, 5);
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1});
  CHECK(find<form_generation>(formed)->released == std::vector{worker_id{2}, worker_id{3}});
  CHECK(group.on_capacity().empty());
  CHECK(asked_for(group.on_ended(killed(1))) == 1);
}

TEST_CASE("whoever is on the way counts when a run is to have another size") {
  auto group = in_loop(4);
  static_cast<void>(group.on_ended(killed(3)));
  static_cast<void>(gather(group, {0, 1, 2}, 4));
  group.on_started({{{4}, {3}, 0, 0, 1}});
  CHECK(group.on_resize(4).empty());
  const auto fewer = group.on_resize(3);
  REQUIRE(find<fence_worker>(fewer));
  CHECK(find<fence_worker>(fewer)->worker == worker_id{4});
  CHECK(asked_for(fewer) == 0);
  CHECK(find<send_command>(fewer) == nullptr);
  CHECK(only_makes_room(group.on_ended(killed(4))));
  CHECK(group.failures().size() == 1);
  group.on_started({{{5}, {3}, 0, 0, 1}});
  CHECK(asked_for(group.on_resize(6)) == 2);
}

TEST_CASE("a size that is asked for while the processes start is taken up when they have") {
  auto more = run_coordinator{settings_for(2, 2)};
  CHECK(more.on_resize(3).empty());
  CHECK(more.on_ready(ready_of(0)).empty());
  const auto begins = more.on_ready(ready_of(1));
  CHECK(find<begin_all>(begins));
  CHECK(asked_for(begins) == 1);
  auto fewer = run_coordinator{settings_for(2, 2)};
  CHECK(fewer.on_resize(1).empty());
  CHECK(fewer.on_ready(ready_of(0)).empty());
  const auto begins_with_two = fewer.on_ready(ready_of(1));
  CHECK(find<begin_all>(begins_with_two));
  CHECK(asks_for_regroup(begins_with_two));
}

TEST_CASE("capacity that comes while the processes start is used when they have") {
  auto group = run_coordinator{settings_for(2, {1, 4})};
  CHECK(group.on_capacity().empty());
  CHECK(group.on_ready(ready_of(0)).empty());
  CHECK(asked_for(group.on_ready(ready_of(1))) == 2);
}

// -- holding --------------------------------------------------------------------------------------------------------

TEST_CASE("a run that is paused holds at the next boundary, until it is resumed") {
  auto group = in_loop(2);
  CHECK(group.on_resume().empty());
  CHECK(asks_for_regroup(group.on_pause()));
  CHECK(group.on_pause().empty());
  const auto held = gather(group, {0, 1}, 5);
  REQUIRE(find<hold>(held));
  CHECK(find<hold>(held)->why == hold::cause::pause);
  CHECK(says(held.front().why, "paused after step 5"));
  CHECK(group.held());
  CHECK(group.awaited_reports().empty());
  // It is no lack of workers.
  CHECK(group.on_hold_timeout().empty());
  const auto formed = group.on_resume();
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{0, 1});
  CHECK_FALSE(group.held());
  CHECK(group.failures().empty());
}

TEST_CASE("what happens during a pause is taken up when it ends") {
  auto group = in_loop(4);
  static_cast<void>(group.on_pause());
  static_cast<void>(gather(group, {0, 1, 2, 3}, 5));
  const auto lost = group.on_ended(killed(3));
  CHECK(asked_for(lost) == 1);
  CHECK(find<form_generation>(lost) == nullptr);
  prepare(group, 4, 1);
  CHECK(group.on_report(asks_for_place(4)).empty());
  CHECK(find<form_generation>(group.on_resize(3)) == nullptr);
  CHECK(group.held());
  const auto formed = group.on_resume();
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->decision.commit_point == step_id{5});
  CHECK(find<form_generation>(formed)->places.size() <= 4);
}

TEST_CASE("a pause that is over before the boundary costs a new generation, and nothing else") {
  auto group = in_loop(2);
  static_cast<void>(group.on_pause());
  CHECK(group.on_resume().empty());
  CHECK(find<form_generation>(gather(group, {0, 1}, 5)));
}

TEST_CASE("a stop ends a pause: who is held does one more step to stop after") {
  auto group = in_loop(2);
  static_cast<void>(group.on_pause());
  static_cast<void>(gather(group, {0, 1}, 5));
  const auto stopped = group.on_stop({false});
  CHECK(find<form_generation>(stopped));
  REQUIRE(find<send_command>(stopped));
  CHECK(std::holds_alternative<stop_command>(find<send_command>(stopped)->command.what));
  CHECK(group.training());
}

TEST_CASE("a pause is kept for a run that has not begun, or begins again") {
  auto early = run_coordinator{settings_for(1, 1)};
  CHECK(early.on_pause().empty());
  const auto begins = early.on_ready(ready_of(0));
  CHECK(find<begin_all>(begins));
  CHECK(asks_for_regroup(begins));
  auto group = in_loop(1);
  static_cast<void>(group.on_pause());
  CHECK(find<restart_run>(group.on_ended(killed(0))));
  group.on_restarted({{{1}, {0}, 0, 0, 1}}, std::nullopt, {0});
  CHECK(asks_for_regroup(group.on_ready(ready_of(1)), 2));
}

TEST_CASE("a run with a range holds below its least number, and goes on when enough have come") {
  auto group = in_loop(settings_for(3, {2, 4}));
  static_cast<void>(group.on_ended(killed(0)));
  CHECK(find<form_generation>(gather(group, {1, 2}, 5)));
  CHECK(find<abort_generation>(group.on_ended(killed(1))));
  const auto held = gather(group, {2}, 5, 2);
  REQUIRE(find<hold>(held));
  CHECK(find<hold>(held)->why == hold::cause::too_few_workers);
  CHECK(says(held.front().why, "at least 2 workers, and has 1"));
  CHECK(group.held());
  prepare(group, 3, 0);
  const auto formed = group.on_report(asks_for_place(3));
  REQUIRE(find<form_generation>(formed));
  CHECK(workers_of(*find<form_generation>(formed)) == ids{2, 3});
  CHECK_FALSE(group.held());
  CHECK(group.on_hold_timeout().empty());
}

TEST_CASE("a run that has too few workers for too long ends, and says what to do") {
  auto group = in_loop(settings_for(2, {2, 4}));
  static_cast<void>(group.on_ended(killed(0)));
  REQUIRE(find<hold>(gather(group, {1}, 5)));
  const auto over = group.on_hold_timeout();
  REQUIRE(find<abort_all>(over));
  const auto end = group.on_finished(cut_off(1, 5));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.code == errc::timed_out);
  CHECK(says(find<conclude>(end)->reason.message, "scaling.wait_for_workers"));
}

TEST_CASE("a run of a fixed number of workers, or one at its end, holds for nobody") {
  auto fixed = in_loop(3);
  static_cast<void>(fixed.on_ended(killed(0)));
  static_cast<void>(fixed.on_ended(killed(1)));
  CHECK(find<form_generation>(gather(fixed, {2}, 5)));
  auto ending = in_loop(settings_for(3, {3, 4}));
  static_cast<void>(ending.on_finished(finished(0)));
  static_cast<void>(ending.on_ended(killed(1)));
  CHECK(find<form_generation>(ending.on_report(elsewhere(2, 10))));
}

// -- nobody is left -------------------------------------------------------------------------------------------------

TEST_CASE("when nobody is left, the run starts again: another attempt, in which the dead have no say") {
  auto group = in_loop(2);
  group.on_applied({0}, {7});
  static_cast<void>(group.on_ended(killed(1)));
  CHECK(find<restart_run>(group.on_ended(killed(0))));
  CHECK(group.attempt() == 2);
  CHECK(group.generation() == generation_id{2});
  CHECK(group.furthest() == step_id{7});
  CHECK(group.starting());
  CHECK(group.occupied().empty());
  CHECK(group.accepted().empty());
  group.on_restarted({{{2}, {0}, 0, 0, 1}, {{3}, {1}, 1, 0, 1}}, resumed_plan{64, "digits", "w f32 [3]", "v3"}, {5});
  CHECK(group.knows({2}));
  CHECK_FALSE(group.knows({0}));
  CHECK(group.on_ready(ready_of(0)).empty());
  CHECK(group.on_ended(killed(0)).empty());
  CHECK(find<refuse_report>(group.on_report(elsewhere(0, 7))));
  CHECK(group.on_finished(finished(0)).empty());
  begin(group, {2, 3}, 2);
  CHECK(group.failures().size() == 2);
  // And it is an ordinary run again, whose numbers go on.
  static_cast<void>(group.on_ended(killed(3)));
  const auto formed = gather(group, {2}, 6, 2);
  REQUIRE(find<form_generation>(formed));
  CHECK(find<form_generation>(formed)->record.attempt == 2);
  CHECK(find<form_generation>(formed)->record.generation == generation_id{3});
  CHECK(group.failures().back().generation == generation_id{2});
}

TEST_CASE("the plans of a new attempt are compared with the checkpoint that it goes on from") {
  auto group = in_loop(1);
  CHECK(find<restart_run>(group.on_ended(killed(0))));
  group.on_restarted({{{1}, {0}, 0, 0, 1}}, resumed_plan{65, "digits", "w f32 [3]", "v3"}, {5});
  static_cast<void>(group.on_ready(ready_of(1)));
  CHECK(find<refuse_plans>(group.on_plan(plan_of(1, 2))));
}

TEST_CASE("attempts that crash before anything is done end the run; getting on, or a kill from outside, begins anew") {
  struct how {
    bool gets_on;
    bool crashes;
  };
  for (const auto& each : {how{false, true}, how{true, true}, how{false, false}}) {
    const auto gets_on = each.gets_on;
    const auto crashes = each.crashes;
    CAPTURE(gets_on);
    CAPTURE(crashes);
    const auto ends = crashes && !gets_on;
    auto group = in_loop(1);
    auto over = false;
    for (std::uint32_t attempt = 1; attempt < 8 && !over; ++attempt) {
      if (gets_on)
        group.on_applied({attempt - 1}, {std::uint64_t{3} * attempt});
      const auto crashed = worker_ended{run, {attempt - 1}, 139, "killed by signal 11 (SIGSEGV)", {}};
      const auto actions = group.on_ended(crashes ? crashed : killed(attempt - 1));
      over = find<conclude>(actions) != nullptr;
      CHECK(over == (ends && attempt == 3));
      if (over) {
        CHECK(find<conclude>(actions)->reason.code == errc::worker_lost);
        CHECK(says(find<conclude>(actions)->reason.message, "3 attempts ended in step 1: worker 2 (rank 0)"));
        break;
      }
      REQUIRE(find<restart_run>(actions));
      group.on_restarted({{{attempt}, {0}, 0, 0, 1}}, std::nullopt, {gets_on ? 3 * attempt - 1 : 0});
      begin(group, {attempt}, attempt + 1);
    }
    CHECK(over == ends);
  }
}

TEST_CASE("a worker that is killed while the processes start has the run started again; one that ends itself ends it") {
  auto group = run_coordinator{settings_for(2, 2)};
  static_cast<void>(group.on_ready(ready_of(0)));
  CHECK(find<restart_run>(group.on_ended(killed(1))));
  CHECK(group.attempt() == 2);
  auto lost = run_coordinator{settings_for(4, 4)};
  CHECK(count<restart_run>(lost.on_node_lost(1, "10.0.0.2:4000")) == 1);
  auto crashed = run_coordinator{settings_for(2, 2)};
  CHECK(find<conclude>(crashed.on_ended({run, {1}, 1, "exit code 1", {}})));
}

TEST_CASE("workers that do not join in time are tried once more, and end the run if they do not come then") {
  auto group = run_coordinator{settings_for(2, 2)};
  static_cast<void>(group.on_ready(ready_of(0)));
  CHECK(find<restart_run>(group.on_start_timeout()));
  CHECK(says(group.failures()[0].reason.message, "worker 1 (rank 1) did not join in time"));
  group.on_restarted({{{2}, {0}, 0, 0, 1}, {{3}, {1}, 0, 1, 1}}, std::nullopt, {});
  const auto again = group.on_start_timeout();
  REQUIRE(find<conclude>(again));
  CHECK(find<conclude>(again)->reason.code == errc::timed_out);
  // Those who have come in between make up for it.
  auto other = in_loop(1);
  static_cast<void>(other.on_ended(killed(0)));
  other.on_restarted({{{1}, {0}, 0, 0, 1}}, std::nullopt, {});
  CHECK(find<restart_run>(other.on_start_timeout()));
  other.on_restarted({{{2}, {0}, 0, 0, 1}}, std::nullopt, {});
  begin(other, {2}, other.generation().value);
  CHECK(find<restart_run>(other.on_ended(killed(2))));
  other.on_restarted({{{3}, {0}, 0, 0, 1}}, std::nullopt, {});
  CHECK(find<restart_run>(other.on_start_timeout()));
}

TEST_CASE("attempts that end for want of memory before anything is done end the run, although the kernel kills them") {
  auto group = in_loop(1);
  for (std::uint32_t attempt = 1;; ++attempt) {
    auto ended = killed(attempt - 1);
    ended.out_of_memory = true;
    const auto actions = group.on_ended(ended);
    if (find<conclude>(actions)) {
      CHECK(attempt == 3);
      break;
    }
    REQUIRE(attempt < 3);
    group.on_restarted({{{attempt}, {0}, 0, 0, 1}}, std::nullopt, {});
    begin(group, {attempt}, attempt + 1);
  }
}

TEST_CASE("a group of which no rank moves is formed anew, and ends the run if it stands there again") {
  auto group = in_loop(2);
  const auto stands = group.on_group_hang("no rank has made progress for 300 s");
  REQUIRE(find<abort_generation>(stands));
  REQUIRE(group.failures().size() == 1);
  CHECK(group.failures()[0].reason.code == errc::timed_out);
  // While they report there is nothing to be done.
  CHECK(group.on_group_hang("no rank has made progress for 600 s").empty());
  static_cast<void>(group.on_report(in_step(0, 3)));
  REQUIRE(find<form_generation>(group.on_report(in_step(1, 3))));
  group.on_applied({0}, {4});
  CHECK(find<abort_generation>(group.on_group_hang("no rank has made progress for 300 s")));
  static_cast<void>(group.on_report(in_step(0, 4, 2)));
  REQUIRE(find<form_generation>(group.on_report(in_step(1, 4, 2))));
  const auto again = group.on_group_hang("no rank has made progress for 300 s");
  CHECK(find<abort_all>(again));
  CHECK(says(again[0].why, "as in the generation before"));
  auto config = settings_for(2, 2);
  config.failure.max_failures = 0;
  CHECK(find<abort_all>(in_loop(config).on_group_hang("no rank has made progress for 300 s")));
}

TEST_CASE("a joiner that says that it is alive may take its time before its first loop") {
  using time = run_coordinator::time;
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(group.on_report(in_step(0, 3)));
  group.on_started({{{2}, {1}, 0, 0, 1}}, time{1s});
  REQUIRE(find<begin_joiner>(group.on_ready(ready_of(2))));
  for (auto now = time{500s}; now < time{5000s}; now += 500s) {
    group.on_sign_of_life({2}, static_cast<std::uint64_t>(now.time_since_epoch().count()), now);
    CHECK(find<fence_worker>(group.on_tick(now + 499s)) == nullptr);
  }
  group.on_sign_of_life({2}, 7, time{5000s});
  group.on_sign_of_life({2}, 7, time{5500s});
  CHECK(find<fence_worker>(group.on_tick(time{5601s})));
}

TEST_CASE("nobody is told to have failed who only has no state to go on with") {
  auto group = in_loop(2);
  static_cast<void>(group.on_ended(killed(1)));
  REQUIRE(find<form_generation>(group.on_report(in_step(0, 3))));
  prepare(group, 2, 0);
  static_cast<void>(group.on_report(asks_for_place(2)));
  REQUIRE(find<form_generation>(group.on_report(at_boundary(0, 5, 2))));
  // It is lost before the joiner has the state.
  static_cast<void>(group.on_ended(killed(0)));
  REQUIRE(find<restart_run>(group.on_report(asks_for_place(2, 3))));
  REQUIRE(group.failures().size() == 2);
  CHECK(group.failures()[1].worker == worker_id{0});
}

TEST_CASE("a lost node that all workers were on has the run started again, once") {
  auto group = in_loop(2);
  const auto lost = group.on_node_lost(0, "10.0.0.1:4000");
  CHECK(count<restart_run>(lost) == 1);
  CHECK(group.attempt() == 2);
}

TEST_CASE("a training function that cannot go on without a lost peer starts again from the latest checkpoint") {
  auto group = in_loop(3);
  CHECK(find<abort_generation>(group.on_ended(killed(1))));
  const auto cannot = [](std::uint32_t worker) {
    auto result = cut_off(worker, 3);
    result.needs_restart = true;
    return result;
  };
  CHECK(find<restart_run>(group.on_finished(cannot(0))));
  CHECK(group.on_finished(cannot(2)).empty());
  REQUIRE(group.failures().size() == 2);
  CHECK_FALSE(group.failures()[0].consequence);
  CHECK(group.failures()[1].consequence);
  auto config = settings_for(2, 2);
  config.failure.max_failures = 0;
  auto strict = in_loop(config);
  CHECK(find<abort_all>(strict.on_finished(cannot(0))));
}

// -- the user's errors ----------------------------------------------------------------------------------------------

TEST_CASE("an exception is tried once more, by the others; on the same step again it is the user's error") {
  auto group = in_loop(3);
  const auto first = group.on_finished(throws(1, 4, "out of range"));
  CHECK(find<abort_generation>(first));
  CHECK(asked_for(first) == 1);
  REQUIRE(find<release_one>(first));
  CHECK(find<release_one>(first)->worker == worker_id{1});
  CHECK(only_makes_room(group.on_ended({run, {1}, 0, "exit code 0", {}})));
  CHECK(find<form_generation>(gather(group, {0, 2}, 4)));
  // Another step is another accident.
  CHECK(find<abort_generation>(group.on_finished(throws(0, 6, "no such file"))));
  CHECK(find<form_generation>(gather(group, {2}, 6, 2)));
  CHECK(group.failures().size() == 2);
  const auto again = group.on_finished(throws(2, 4, "out of range"));
  REQUIRE(find<conclude>(again));
  CHECK(find<conclude>(again)->status == run_status::failed);
  CHECK(find<conclude>(again)->reason.code == errc::user_error);
  CHECK(find<conclude>(again)->reason.message == "out of range");
}

TEST_CASE("a GPU that fails is an accident once, as an exception is") {
  auto group = in_loop(3);
  const auto first = group.on_finished(fails(1, 4, errc::device_error, "GPU 0: illegal address"));
  CHECK(find<abort_generation>(first));
  CHECK(asked_for(first) == 1);
  REQUIRE(find<release_one>(first));
  CHECK(only_makes_room(group.on_ended({run, {1}, 0, "exit code 0", {}})));
  CHECK(find<form_generation>(gather(group, {0, 2}, 4)));
  const auto again = group.on_finished(fails(2, 4, errc::device_error, "GPU 0: illegal address"));
  CHECK(find<abort_all>(again));
  const auto end = group.on_finished(cut_off(0, 4));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.code == errc::device_error);
}

TEST_CASE("an exception that all workers throw on the same step ends the run at once, and the first is the cause") {
  auto group = in_loop(3);
  CHECK(find<abort_generation>(group.on_finished(throws(1, 4, "from rank 1"))));
  CHECK(find<abort_all>(group.on_finished(throws(0, 4, "from rank 0"))));
  const auto end = group.on_finished(throws(2, 4, "from rank 2"));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.message == "from rank 1");
}

TEST_CASE("an exception before the first step of an attempt ends the run") {
  auto config = settings_for(2, 2);
  config.first_step = {7};
  auto group = in_loop(config);
  CHECK(find<abort_all>(group.on_finished(throws(1, 7, "no such file"))));
  const auto end = group.on_finished(cut_off(0, 7));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.message == "no such file");
}

TEST_CASE("an exception of the only worker starts the run again, and the same one after it ends it") {
  auto group = in_loop(1);
  CHECK(find<restart_run>(group.on_finished(throws(0, 4, "out of range"))));
  group.on_restarted({{{1}, {0}, 0, 0, 1}}, std::nullopt, {2});
  begin(group, {1}, 2);
  const auto end = group.on_finished(throws(1, 4, "out of range"));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.code == errc::user_error);
}

/// Of a member whose training function has thrown in the step after `committed`.
regroup_report thrown(std::uint32_t worker, std::uint64_t committed, error reason, std::uint64_t generation = 1) {
  auto result = report_of(worker, worker_position::thrown{after(committed)}, generation);
  result.reason = std::move(reason);
  return result;
}

TEST_CASE("a worker that throws while others have the state is told so at once, and they go on") {
  auto group = in_loop(3);
  const auto first = group.on_report(thrown(1, 4, {errc::user_error, "out of range"}));
  REQUIRE(find<refuse_report>(first));
  CHECK(find<refuse_report>(first)->worker == worker_id{1});
  CHECK(find<abort_generation>(first));
  CHECK(find<save_state>(first) == nullptr);
  // Its process is let go when its training function has ended.
  CHECK(find<release_one>(first) == nullptr);
  const auto ended = group.on_finished(throws(1, 4, "out of range"));
  REQUIRE(ended.size() == 1);
  REQUIRE(find<release_one>(ended));
  CHECK(find<release_one>(ended)->worker == worker_id{1});
  CHECK(group.failures().size() == 1);
  CHECK(find<form_generation>(gather(group, {0, 2}, 4)));
}

TEST_CASE("the only worker saves its state when it throws, and the run restarts from there") {
  auto group = in_loop(1);
  const auto first = group.on_report(thrown(0, 4, {errc::device_error, "GPU 0: out of memory"}));
  REQUIRE(first.size() == 1);
  REQUIRE(find<save_state>(first));
  CHECK(*find<save_state>(first) == save_state{{0}, {errc::device_error, "GPU 0: out of memory"}, {4}});
  CHECK(group.failures().empty());
  CHECK(find<restart_run>(group.on_finished(fails(0, 4, errc::device_error, "GPU 0: out of memory"))));
}

TEST_CASE("when all workers throw in one step, one of them saves the state") {
  const auto reason = error{errc::user_error, "out of range"};
  auto two = in_loop(2);
  CHECK(find<refuse_report>(two.on_report(thrown(1, 4, reason))));
  const auto last = two.on_report(thrown(0, 4, reason));
  REQUIRE(find<save_state>(last));
  CHECK(find<save_state>(last)->worker == worker_id{0});
  CHECK(find<conclude>(two.on_finished(throws(0, 4, "out of range"))));
  // The second ends the run, which asks those that remain.
  auto four = in_loop(4);
  CHECK(find<refuse_report>(four.on_report(thrown(1, 4, reason))));
  const auto second = four.on_report(thrown(3, 4, reason));
  CHECK(find<refuse_report>(second));
  CHECK(find<abort_all>(second));
  CHECK(four.on_report(thrown(2, 4, reason)).empty());
  const auto ending = four.on_report(thrown(0, 4, reason));
  REQUIRE(find<save_state>(ending));
  CHECK(find<save_state>(ending)->worker == worker_id{0});
  CHECK(find<refuse_report>(four.on_finished(cut_off(0, 4))));
  const auto end = four.on_finished(throws(2, 4, "out of range"));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.code == errc::user_error);
}

// -- what is late ---------------------------------------------------------------------------------------------------

TEST_CASE("a report of a generation that is over, or of one that was given up, is refused and changes nothing") {
  auto group = in_loop(3);
  static_cast<void>(group.on_ended(killed(1)));
  static_cast<void>(gather(group, {0, 2}, 4));
  REQUIRE(group.generation() == generation_id{2});
  const auto refusal = [&](const regroup_report& report) {
    const auto actions = group.on_report(report);
    REQUIRE(actions.size() == 1);
    REQUIRE(find<refuse_report>(actions));
    CHECK(find<refuse_report>(actions)->worker == report.worker);
    CHECK(group.training());
    return find<refuse_report>(actions)->reason;
  };
  CHECK(refusal(elsewhere(0, 4, 1)).code == errc::stale_generation);
  CHECK(says(refusal(elsewhere(0, 4, 1)).message, "generation 1 is over; the last is 2"));
  CHECK(refusal(elsewhere(1, 4, 2)).code == errc::stale_generation);
  CHECK(refusal(elsewhere(9, 4, 2)).code == errc::stale_generation);
  CHECK(group.furthest() == step_id{4});
  static_cast<void>(group.on_finished(throws(0, 0, "at once")));
  CHECK(group.on_report(elsewhere(2, 4, 1)).size() == 1);
  CHECK(find<refuse_report>(group.on_report(elsewhere(2, 4, 1))));
}

TEST_CASE("a run that fails has its state saved by a member, and what becomes of that is no cause") {
  const auto failing = [] {
    auto group = in_loop(3);
    static_cast<void>(group.on_finished(throws(1, 0, "at once")));
    CHECK_FALSE(group.goes_on());
    CHECK(group.on_report(elsewhere(0, 4)).empty());
    const auto ending = group.on_report(elsewhere(2, 4));
    REQUIRE(find<save_state>(ending));
    CHECK(find<save_state>(ending)->worker == worker_id{0});
    return group;
  };
  auto saved = failing();
  const auto refused = saved.on_finished(cut_off(0, 4));
  REQUIRE(find<refuse_report>(refused));
  CHECK(find<refuse_report>(refused)->worker == worker_id{2});
  CHECK(find<conclude>(saved.on_finished(cut_off(2, 4)))->reason.message == "at once");
  auto unsaved = failing();
  CHECK(find<save_state>(unsaved.on_finished(fails(0, 4, errc::io_error, "no space")))->worker == worker_id{2});
  const auto end = unsaved.on_finished(fails(2, 4, errc::io_error, "no space"));
  REQUIRE(find<conclude>(end));
  CHECK(find<conclude>(end)->reason.message == "at once");
  REQUIRE(unsaved.failures().size() == 3);
  CHECK(unsaved.failures()[1].consequence);
  CHECK(unsaved.failures()[2].consequence);
}

TEST_CASE("the state of replicas that differ is not saved") {
  auto group = in_loop(3);
  static_cast<void>(group.on_finished(fails(1, 4, errc::mismatch, "replicas differ")));
  CHECK(find<refuse_report>(group.on_report(elsewhere(0, 4))));
}

namespace {

/// Its group is gone because these ranks do not answer.
regroup_report without_answer(regroup_report report, const std::vector<std::uint32_t>& ranks) {
  report.reason = {errc::aborted, "no answer"};
  for (auto rank : ranks)
    report.unreachable.emplace_back(rank);
  return report;
}

std::vector<std::uint32_t> fenced(const run_actions& actions) {
  std::vector<std::uint32_t> result;
  for (const auto& x : actions)
    if (const auto* fence = std::get_if<fence_worker>(&x.what))
      result.push_back(fence->worker.value);
  return result;
}

} // namespace

TEST_CASE("where the data network is cut between two nodes, the larger side goes on and the other is replaced") {
  auto group = training(3);
  CHECK(find<abort_generation>(group.on_report(without_answer(holding(2, 3), {0, 1}))));
  CHECK(group.on_report(elsewhere(1, 3)).empty());
  const auto actions = group.on_report(without_answer(holding(0, 3), {2}));
  REQUIRE(find<avoid_node>(actions));
  CHECK(find<avoid_node>(actions)->node == 1);
  CHECK(fenced(actions) == ids{2});
  REQUIRE(find<refuse_report>(actions));
  CHECK(find<refuse_report>(actions)->worker == worker_id{2});
  CHECK(find<refuse_report>(actions)->reason.code == errc::stale_generation);
  REQUIRE(find<form_generation>(actions));
  CHECK(workers_of(*find<form_generation>(actions)) == ids{0, 1});
  REQUIRE(group.failures().size() == 1);
  CHECK(group.failures()[0].worker == worker_id{2});
  CHECK(group.failures()[0].reason.code == errc::unreachable);
  CHECK(group.failures()[0].generation == generation_id{1});
  // That its process ends is the same failure.
  CHECK(only_makes_room(group.on_ended(killed(2))));
  CHECK(group.failures().size() == 1);
  CHECK(group.training());
}

TEST_CASE("a step that only the side that is given up has committed is computed again") {
  auto group = training(4);
  std::ignore = group.on_report(without_answer(holding(0, 3), {2, 3}));
  std::ignore = group.on_report(elsewhere(1, 3));
  std::ignore = group.on_report(without_answer(elsewhere(2, 4), {0, 1}));
  const auto actions = group.on_report(elsewhere(3, 4));
  REQUIRE(find<form_generation>(actions));
  CHECK(workers_of(*find<form_generation>(actions)) == ids{0, 1});
  CHECK(find<form_generation>(actions)->decision.commit_point == step_id{3});
}

TEST_CASE("a peer that does not answer one side only was frozen or starved: all form the next generation") {
  auto group = training(4);
  std::ignore = group.on_report(without_answer(holding(0, 3), {2}));
  std::ignore = group.on_report(elsewhere(1, 3));
  std::ignore = group.on_report(elsewhere(2, 3));
  const auto actions = group.on_report(elsewhere(3, 3));
  CHECK(count<avoid_node>(actions) == 0);
  REQUIRE(find<form_generation>(actions));
  CHECK(workers_of(*find<form_generation>(actions)) == ids{0, 1, 2, 3});
}

TEST_CASE("a cut is found again while the next generation forms") {
  auto group = training(4);
  std::ignore = group.on_report(without_answer(holding(0, 3), {2, 3}));
  for (std::uint32_t worker : {1, 2, 3})
    std::ignore = group.on_report(elsewhere(worker, 3));
  REQUIRE(group.generation() == generation_id{2});
  for (std::uint32_t worker : {0, 1})
    std::ignore = group.on_report(without_answer(elsewhere(worker, 3, 2), {2, 3}));
  std::ignore = group.on_report(without_answer(elsewhere(2, 3, 2), {0, 1}));
  const auto actions = group.on_report(without_answer(elsewhere(3, 3, 2), {0, 1}));
  CHECK(fenced(actions) == ids{2, 3});
  REQUIRE(find<form_generation>(actions));
  CHECK(workers_of(*find<form_generation>(actions)) == ids{0, 1});
}

TEST_CASE("members that were to leave stay if those that were to stay are cut off") {
  auto group = training(5);
  static_cast<void>(group.on_resize(2));
  for (std::uint32_t worker : {0, 1})
    std::ignore = group.on_report(without_answer(elsewhere(worker, 3), {2, 3, 4}));
  for (std::uint32_t worker : {2, 3})
    std::ignore = group.on_report(without_answer(elsewhere(worker, 3), {0, 1}));
  const auto actions = group.on_report(without_answer(elsewhere(4, 3), {0, 1}));
  CHECK(fenced(actions) == ids{0, 1});
  REQUIRE(find<form_generation>(actions));
  CHECK(workers_of(*find<form_generation>(actions)) == ids{2, 3, 4});
  CHECK(find<restart_run>(actions) == nullptr);
  // One is still too many, and the two others stay.
  CHECK(find<send_command>(actions));
}
