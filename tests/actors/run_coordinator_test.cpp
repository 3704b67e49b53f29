#include <troupe/actors/decisions/run_coordinator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto run = run_id{"0123"};

/// Fingerprints are texts here; equal ones agree.
std::vector<std::string> compare_texts(const std::string& ours, const std::string& theirs) {
  return ours == theirs ? std::vector<std::string>{} : std::vector<std::string>{"cpu: " + ours + " / " + theirs};
}

run_coordinator::settings settings_for(std::uint32_t workers, std::uint32_t per_node = 2) {
  run_coordinator::settings result;
  // Ends at the first loss, but where a test says otherwise.
  result.failure.max_failures = 0;
  result.run = run;
  result.build_id = std::string{"c0ffee"};
  result.compare_numerics = compare_texts;
  for (std::uint32_t i = 0; i < workers; ++i)
    result.places.push_back({{i}, {i}, i / per_node, i % per_node, per_node});
  return result;
}

worker_ready ready_of(std::uint32_t worker) {
  return {run, {worker}, 100 + worker, "host-" + std::to_string(worker), "c0ffee", "v3"};
}

run_plan plan_of(std::uint32_t worker) {
  return {run, {1}, {worker}, 10, 64, 1797, "digits", "w f32 [3]", 0, {}};
}

worker_finished finished_by(std::uint32_t worker, error reason = {}, std::uint64_t step = 10) {
  return {run, {1}, {worker}, {step}, std::move(reason), false, false, std::string(64, 'a')};
}

regroup_report report_of(std::uint32_t worker) {
  return {run, {1}, {worker}, 0, worker_position::elsewhere{}, {}};
}

worker_ended ended(std::uint32_t worker, std::string how = "exit code 0") {
  return {run, {worker}, 0, std::move(how), {"a last line"}};
}

const auto cut_off = error{errc::aborted, "rank 1 is gone"};
const auto user_bug = error{errc::user_error, "rank 1 after step 3: out of range"};

/// What a list of actions says, by the kinds' names.
std::vector<std::string> kinds(const run_actions& actions) {
  static const char* names[] = {"begin",   "begin joiner", "accept",      "accept joiner", "refuse",  "refuse one",
                                "command", "stage",        "end staging", "skip loop",     "abort",   "abort group",
                                "hold",    "form",         "start",       "fence",         "give up", "avoid node",
                                "restart", "release one",  "release",     "warn",          "save",    "conclude"};
  static_assert(std::size(names) == std::variant_size_v<decltype(run_action::what)>);
  std::vector<std::string> result;
  for (const auto& each : actions) {
    result.emplace_back(names[each.what.index()]);
    CHECK_FALSE(each.why.empty());
  }
  return result;
}

using list = std::vector<std::string>;

const conclude& conclusion(const run_actions& actions) {
  REQUIRE_FALSE(actions.empty());
  const auto* result = std::get_if<conclude>(&actions.back().what);
  REQUIRE(result);
  return *result;
}

bool says(const error& reason, const std::string& part) {
  return reason.message.find(part) != std::string::npos;
}

/// A run that has come as far as its name says.
run_coordinator starting(std::uint32_t workers) {
  return run_coordinator{settings_for(workers)};
}

void join_all(run_coordinator& run, std::uint32_t workers) {
  for (std::uint32_t i = 0; i < workers; ++i)
    REQUIRE(kinds(run.on_ready(ready_of(i))) == (i + 1 == workers ? list{"begin"} : list{}));
}

run_coordinator training(std::uint32_t workers) {
  auto result = starting(workers);
  join_all(result, workers);
  for (std::uint32_t i = 0; i < workers; ++i)
    REQUIRE(kinds(result.on_plan(plan_of(i))) == (i + 1 == workers ? list{"accept"} : list{}));
  REQUIRE(result.training());
  return result;
}

/// One that survives failures, in training.
run_coordinator survivor(std::uint32_t workers, std::uint32_t per_node = 2, const failure_config& failure = {}) {
  auto settings = settings_for(workers, per_node);
  settings.failure = failure;
  auto result = run_coordinator{settings};
  join_all(result, workers);
  for (std::uint32_t i = 0; i < workers; ++i)
    std::ignore = result.on_plan(plan_of(i));
  REQUIRE(result.training());
  return result;
}

/// Whether the run fails or all is done: what is left of it has a grace period to end.
bool is_in_grace(const run_coordinator& run) {
  return !run.starting() && !run.goes_on() && !run.over();
}

run_coordinator releasing(std::uint32_t workers) {
  auto result = training(workers);
  for (std::uint32_t i = 0; i < workers; ++i)
    REQUIRE(kinds(result.on_finished(finished_by(i))) == (i + 1 == workers ? list{"release"} : list{}));
  REQUIRE(is_in_grace(result));
  return result;
}

/// Two workers, of which worker 1's bug has been told.
run_coordinator failing() {
  auto result = training(2);
  REQUIRE(kinds(result.on_finished(finished_by(1, user_bug, 3))) == list{"abort"});
  return result;
}

/// Whatever happens now has no effect.
void check_that_nothing_acts(run_coordinator& run) {
  CHECK(run.over());
  auto failures = run.failures();
  for (std::uint32_t i = 0; i < 3; ++i) {
    CHECK(run.on_ready(ready_of(i)).empty());
    CHECK(run.on_plan(plan_of(i)).empty());
    CHECK(run.on_finished(finished_by(i, cut_off)).empty());
    CHECK(run.on_ended(ended(i)).empty());
    CHECK(run.on_node_lost(i, "node").empty());
    CHECK(run.on_node_leaving(i, true).empty());
    CHECK(kinds(run.on_report(report_of(i))) == list{"refuse one"});
    CHECK(run.on_resize(1 + i).empty());
  }
  CHECK(run.on_capacity().empty());
  CHECK(run.on_pause().empty());
  CHECK(run.on_resume().empty());
  CHECK(run.on_drain_timeout().empty());
  CHECK(run.on_hold_timeout().empty());
  CHECK(run.on_tick(run_coordinator::time{} + std::chrono::hours{1}).empty());
  CHECK(run.on_stop({false}).empty());
  CHECK(run.on_stop({true}).empty());
  CHECK(run.on_checkpoint_request().empty());
  CHECK(run.on_start_timeout().empty());
  CHECK(run.on_grace_timeout().empty());
  CHECK(run.failures() == failures);
}

} // namespace

TEST_CASE("a run without trouble begins once all are ready, agrees, releases, and is completed") {
  auto run = starting(3);
  CHECK(run.on_ready(ready_of(2)).empty());
  CHECK(run.on_ready(ready_of(2)).empty());
  CHECK(run.on_ready(ready_of(0)).empty());
  CHECK_FALSE(run.training());
  CHECK(kinds(run.on_ready(ready_of(1))) == list{"begin"});
  CHECK(run.training());
  CHECK(run.on_plan(plan_of(0)).empty());
  CHECK(run.on_plan(plan_of(0)).empty());
  CHECK(run.on_plan(plan_of(1)).empty());
  auto accepted = run.on_plan(plan_of(2));
  REQUIRE(kinds(accepted) == list{"accept"});
  CHECK(std::get<accept_plans>(accepted[0].what).plan.steps == 10);
  CHECK(run.on_finished(finished_by(1)).empty());
  CHECK(run.on_finished(finished_by(1)).empty());
  CHECK(run.on_finished(finished_by(0)).empty());
  CHECK_FALSE(is_in_grace(run));
  CHECK(kinds(run.on_finished(finished_by(2))) == list{"release"});
  CHECK(is_in_grace(run));
  CHECK(run.on_ended(ended(0)).empty());
  CHECK(run.on_ended(ended(0)).empty());
  CHECK(run.on_ended(ended(2)).empty());
  auto last = run.on_ended(ended(1));
  CHECK(conclusion(last) == conclude{run_status::completed, {}});
  CHECK(run.failures().empty());
  CHECK(run.state_sha256() == std::string(64, 'a'));
  CHECK(run.final_step().value == 10);
  CHECK(run.exact_hosts());
  check_that_nothing_acts(run);
}

TEST_CASE("strangers have no effect in any phase") {
  auto phases = std::vector<std::function<run_coordinator()>>{[] { return starting(2); }, [] { return training(2); },
                                                              [] { return releasing(2); }, [] { return failing(); }};
  for (const auto& make : phases) {
    auto run = make();
    auto failures = run.failures().size();
    CHECK(run.on_ready(ready_of(9)).empty());
    CHECK(run.on_plan(plan_of(9)).empty());
    CHECK(run.on_finished(finished_by(9, user_bug)).empty());
    CHECK(run.on_ended(ended(9)).empty());
    CHECK(run.on_node_lost(9, "nowhere").empty());
    run.on_applied({9}, {5});
    CHECK(run.failures().size() == failures);
    CHECK_FALSE(run.over());
  }
}

TEST_CASE("a worker of another build ends the run before it begins, with both builds and the host") {
  auto run = starting(2);
  auto other = ready_of(1);
  other.build_id = std::string{"decaf"};
  auto actions = run.on_ready(other);
  auto reason = conclusion(actions).reason;
  CHECK(conclusion(actions).status == run_status::failed);
  CHECK(reason.code == errc::program_mismatch);
  CHECK(says(reason, "decaf"));
  CHECK(says(reason, "c0ffee"));
  CHECK(says(reason, "host-1"));
  CHECK(says(reason, "install the same build"));
  check_that_nothing_acts(run);
}

TEST_CASE("hosts that compute differently are refused, or marked when they are allowed") {
  auto other = ready_of(1);
  other.numerics = std::string{"v4"};
  auto strict = starting(2);
  CHECK(strict.on_ready(ready_of(0)).empty());
  auto actions = strict.on_ready(other);
  auto reason = conclusion(actions).reason;
  CHECK(reason.code == errc::mismatch);
  CHECK(says(reason, "cpu: v4 / v3"));
  CHECK(says(reason, "worker 1 (rank 1) on host-1"));
  CHECK(says(reason, "worker 0 (rank 0) on host-0"));
  CHECK(says(reason, "run.allow_mixed_hosts"));
  auto config = settings_for(2);
  config.allow_mixed_hosts = true;
  auto mixed = run_coordinator{config};
  CHECK(mixed.on_ready(ready_of(0)).empty());
  CHECK(kinds(mixed.on_ready(other)) == list{"begin"});
  CHECK_FALSE(mixed.exact_hosts());
}

TEST_CASE("a resumed run is compared with its checkpoint: processor and plan") {
  auto config = settings_for(1);
  config.resumed = resumed_plan{64, "digits", "w f32 [3]", "v2"};
  auto strict = run_coordinator{config};
  auto refused = strict.on_ready(ready_of(0));
  CHECK(conclusion(refused).reason.code == errc::mismatch);
  CHECK(says(conclusion(refused).reason, "what the run has computed on before"));
  config.allow_mixed_hosts = true;
  auto mixed = run_coordinator{config};
  CHECK(kinds(mixed.on_ready(ready_of(0))) == list{"begin"});
  CHECK_FALSE(mixed.exact_hosts());
  CHECK(kinds(mixed.on_plan(plan_of(0))) == list{"accept"});
  config.resumed->numerics = std::string{"v3"};
  for (auto [change, name] :
       {std::pair{+[](resumed_plan& x) { x.batch_samples = 32; }, "batch size: 64 now, 32 in the"},
        std::pair{+[](resumed_plan& x) { x.data_fingerprint = std::string{"other"}; }, "data fingerprint: digits"},
        std::pair{+[](resumed_plan& x) { x.tensors = std::string{"v"}; }, "tracked tensors: w f32 [3] now, v in"}}) {
    auto changed = config;
    change(*changed.resumed);
    auto run = run_coordinator{changed};
    join_all(run, 1);
    auto actions = run.on_plan(plan_of(0));
    CHECK(kinds(actions) == list{"refuse", "abort"});
    auto reason = std::get<refuse_plans>(actions[0].what).reason;
    CHECK(reason.code == errc::mismatch);
    CAPTURE(reason.message);
    CHECK(says(reason, name));
    CHECK(says(reason, "load_checkpoint"));
  }
}

TEST_CASE("more or fewer steps than before the run was resumed are no difference") {
  auto config = settings_for(1);
  config.resumed = resumed_plan{64, "digits", "w f32 [3]", "v3"};
  auto run = run_coordinator{config};
  join_all(run, 1);
  auto plan = plan_of(0);
  plan.steps = 99;
  CHECK(kinds(run.on_plan(plan)) == list{"accept"});
}

TEST_CASE("plans that differ are refused with every difference; what the workers then say are consequences") {
  for (auto [change, name] :
       {std::pair{+[](run_plan& x) { x.steps = 11; }, "steps: 10"},
        std::pair{+[](run_plan& x) { x.batch_samples = 65; }, "batch size: 64"},
        std::pair{+[](run_plan& x) { x.data_samples = 1; }, "samples in the data set: 1797"},
        std::pair{+[](run_plan& x) { x.data_fingerprint = std::string{"d"}; }, "data fingerprint: digits"},
        std::pair{+[](run_plan& x) { x.tensors = std::string{"v"}; }, "tracked tensors: w f32 [3]"}}) {
    auto run = starting(2);
    join_all(run, 2);
    auto other = plan_of(1);
    change(other);
    CHECK(run.on_plan(plan_of(0)).empty());
    auto actions = run.on_plan(other);
    REQUIRE(kinds(actions) == list{"refuse", "abort"});
    auto reason = std::get<refuse_plans>(actions[0].what).reason;
    CAPTURE(reason.message);
    CHECK(reason.code == errc::mismatch);
    CHECK(says(reason, name));
    CHECK(says(reason, "worker 1 (rank 1)"));
    auto told = error{errc::mismatch, "rank 0 after step 0: " + reason.message};
    CHECK(run.on_finished(finished_by(0, told, 0)).empty());
    CHECK(conclusion(run.on_finished(finished_by(1, told, 0))).reason == reason);
    REQUIRE(run.failures().size() == 3);
    CHECK_FALSE(run.failures()[0].consequence);
    CHECK(run.failures()[1].consequence);
    CHECK(run.failures()[2].consequence);
  }
}

TEST_CASE("a worker that dies before it has joined ends the run with its last lines") {
  auto run = starting(2);
  CHECK(run.on_ready(ready_of(0)).empty());
  auto actions = run.on_ended(ended(1, "exit code 127"));
  auto reason = conclusion(actions).reason;
  CHECK(reason.code == errc::worker_lost);
  CHECK(says(reason, "worker 1 (rank 1) ended before it had joined: exit code 127"));
  CHECK(says(reason, "a last line"));
  REQUIRE(run.failures().size() == 1);
  CHECK(run.failures()[0].last_lines == list{"a last line"});
  check_that_nothing_acts(run);
}

TEST_CASE("a worker that dies in training is the cause, though the others tell first that they were cut off") {
  auto run = training(3);
  run.on_applied({2}, {4});
  run.on_applied({2}, {3});
  CHECK(kinds(run.on_finished(finished_by(0, cut_off, 4))) == list{"abort"});
  CHECK(run.on_finished(finished_by(1, cut_off, 4)).empty());
  auto actions = run.on_ended(ended(2, "killed by signal 9 (SIGKILL)"));
  auto reason = conclusion(actions).reason;
  CHECK(reason.code == errc::worker_lost);
  CHECK(says(reason, "worker 2 (rank 2) on host-2 ended after step 4: killed by signal 9 (SIGKILL)"));
  REQUIRE(run.failures().size() == 3);
  CHECK(run.failures()[0].worker.value == 2);
  CHECK(run.failures()[0].step.value == 5);
  CHECK_FALSE(run.failures()[0].consequence);
  CHECK(run.failures()[1].worker.value == 0);
  CHECK(run.failures()[1].consequence);
  CHECK(run.failures()[2].consequence);
  check_that_nothing_acts(run);
}

TEST_CASE("what a process has committed counts, though it ended before it was reported") {
  auto run = training(2);
  run.on_applied({1}, {3});
  auto message = ended(1, "killed by signal 11 (SIGSEGV)");
  message.committed = step_id{7};
  std::ignore = run.on_ended(message);
  REQUIRE_FALSE(run.failures().empty());
  CHECK(run.failures()[0].step == step_id{8});
  CHECK(run.furthest() == step_id{7});
}

TEST_CASE("the user's error is the cause in whichever order it is told") {
  auto told_first = training(2);
  auto abort = told_first.on_finished(finished_by(1, user_bug, 3));
  REQUIRE(kinds(abort) == list{"abort"});
  CHECK(std::get<abort_all>(abort[0].what).reason.code == errc::aborted);
  CHECK(says(std::get<abort_all>(abort[0].what).reason, user_bug.message));
  CHECK(conclusion(told_first.on_finished(finished_by(0, cut_off, 3))).reason == user_bug);
  auto told_last = training(2);
  CHECK(kinds(told_last.on_finished(finished_by(0, cut_off, 3))) == list{"abort"});
  CHECK(conclusion(told_last.on_finished(finished_by(1, user_bug, 3))).reason == user_bug);
  for (const auto* run : {&told_first, &told_last}) {
    REQUIRE(run->failures().size() == 2);
    CHECK(run->failures()[0].reason == user_bug);
    CHECK(run->failures()[0].rank.value == 1);
    CHECK(run->failures()[0].step.value == 4);
    CHECK_FALSE(run->failures()[0].consequence);
    CHECK(run->failures()[1].consequence);
  }
}

TEST_CASE("when all were cut off and nobody knows why, the first is shown as the cause") {
  auto run = training(2);
  std::ignore = run.on_finished(finished_by(0, cut_off));
  CHECK(conclusion(run.on_finished(finished_by(1, cut_off))).reason == cut_off);
  CHECK_FALSE(run.failures()[0].consequence);
  CHECK(run.failures()[1].consequence);
}

TEST_CASE("a worker that returns while the others fail does not make them succeed") {
  auto run = failing();
  CHECK(conclusion(run.on_finished(finished_by(0))).reason == user_bug);
  CHECK(run.failures().size() == 1);
}

TEST_CASE("a worker that ends after it has reported in a failing run is no failure of its own") {
  auto run = failing();
  CHECK(run.on_ended(ended(1, "exit code 1")).empty());
  CHECK(conclusion(run.on_ended(ended(0, "exit code 1"))).reason == user_bug);
  REQUIRE(run.failures().size() == 2);
  CHECK(run.failures()[0].reason == user_bug);
}

TEST_CASE("how a released worker ends does not matter any more") {
  auto run = releasing(2);
  CHECK(run.on_ended(ended(0, "killed by signal 11 (SIGSEGV)")).empty());
  CHECK(conclusion(run.on_ended(ended(1))).status == run_status::completed);
  CHECK(run.failures().empty());
}

TEST_CASE("a worker that ends after its function has returned, but before it was released, is lost") {
  auto run = training(2);
  CHECK(run.on_finished(finished_by(0)).empty());
  CHECK(kinds(run.on_ended(ended(0, "exit code 3"))) == list{"abort"});
  CHECK(conclusion(run.on_finished(finished_by(1))).reason.code == errc::worker_lost);
}

TEST_CASE("a lost node loses its workers, and no others") {
  auto run = training(4);
  CHECK(kinds(run.on_node_lost(1, "10.0.0.7:4000")) == list{"abort"});
  REQUIRE(run.failures().size() == 2);
  CHECK(run.failures()[0].worker.value == 2);
  CHECK(run.failures()[1].worker.value == 3);
  CHECK(run.on_node_lost(1, "10.0.0.7:4000").empty());
  CHECK(run.on_finished(finished_by(0, cut_off)).empty());
  auto reason = conclusion(run.on_finished(finished_by(1, cut_off))).reason;
  CHECK(reason.code == errc::node_lost);
  CHECK(says(reason, "10.0.0.7:4000"));
  check_that_nothing_acts(run);
}

TEST_CASE("a node that is lost at the start ends the run at once; after the release it ends nothing") {
  auto early = starting(2);
  CHECK(conclusion(early.on_node_lost(0, "n")).reason.code == errc::node_lost);
  check_that_nothing_acts(early);
  auto late = releasing(4);
  CHECK(late.on_node_lost(0, "n").empty());
  CHECK(late.on_ended(ended(2)).empty());
  CHECK(conclusion(late.on_node_lost(1, "m")).status == run_status::completed);
  CHECK(late.failures().empty());
}

TEST_CASE("losing all nodes ends the run") {
  auto run = training(4);
  CHECK(kinds(run.on_node_lost(0, "n")) == list{"abort"});
  CHECK(kinds(run.on_node_lost(1, "m")) == list{"conclude"});
  CHECK(run.failures().size() == 4);
}

const auto start = run_coordinator::time{};

TEST_CASE("a lost host is one failure, however many workers it had") {
  auto settings = settings_for(8, 4);
  settings.failure.max_failures = 1;
  settings.failure.replace_lost = false;
  auto run = run_coordinator{settings};
  join_all(run, 8);
  for (std::uint32_t i = 0; i < 8; ++i)
    std::ignore = run.on_plan(plan_of(i));
  CHECK(kinds(run.on_node_lost(1, "m")) == list{"abort group"});
  CHECK(run.failures().size() == 4);
  CHECK(run.goes_on());
}

TEST_CASE("a lost host is one failure, also when all others have reported and form a group at once") {
  auto settings = settings_for(8, 4);
  settings.failure.max_failures = 1;
  settings.failure.replace_lost = false;
  auto run = run_coordinator{settings};
  join_all(run, 8);
  for (std::uint32_t i = 0; i < 8; ++i)
    std::ignore = run.on_plan(plan_of(i));
  for (std::uint32_t i = 0; i < 4; ++i)
    std::ignore = run.on_report(report_of(i), start);
  std::ignore = run.on_node_lost(1, "m");
  CHECK(run.goes_on());
  CHECK(run.failures().size() == 4);
}

TEST_CASE("a silent node is given up if others have the state, and one failure for each of its workers is reported") {
  auto run = survivor(4);
  CHECK(kinds(run.on_nodes_silent({{1, "node m is silent"}}, start + 1s)) == list{"give up", "abort group", "start"});
  REQUIRE(run.failures().size() == 2);
  CHECK(run.failures()[0].reason.code == errc::node_lost);
  CHECK(says(run.failures()[1].reason, "node m is silent, and with it worker 3"));
  CHECK_FALSE(run.awaits_answers());
  CHECK(run.on_node_answers(1, start + 2s).empty());
}

TEST_CASE("nothing happens to silent workers that alone have the state, and they go on when they answer") {
  auto run = survivor(2);
  auto actions = run.on_nodes_silent({{0, "node n is silent"}}, start + 1s);
  REQUIRE(kinds(actions) == list{"hold"});
  CHECK(std::get<hold>(actions[0].what).why == hold::cause::unreachable);
  CHECK(actions[0].why.find("300 s (failure.unreachable_after)") != std::string::npos);
  CHECK(run.awaits_answers());
  CHECK(run.on_tick(start + 300s).empty());
  CHECK(kinds(run.on_node_answers(0, start + 300s)) == list{"warn"});
  CHECK(run.on_node_answers(0, start + 300s).empty());
  CHECK(run.training());
  CHECK(run.failures().empty());
  CHECK(run.on_tick(start + 1000s).empty());
}

TEST_CASE("a run starts again when those who alone have the state do not answer for long, but not before") {
  auto run = survivor(4);
  CHECK(kinds(run.on_nodes_silent({{0, "node n is silent"}}, start)) == list{"give up", "abort group", "start"});
  CHECK(kinds(run.on_nodes_silent({{1, "node m is silent"}}, start + 1s)) == list{"hold"});
  CHECK(run.on_tick(start + 300s).empty());
  CHECK(kinds(run.on_tick(start + 301s)) == list{"give up", "restart"});
}

TEST_CASE("nodes that fall silent together are waited for together, and the first that answers goes on alone") {
  auto run = survivor(4);
  const auto silent = run.on_nodes_silent({{0, "node n is silent"}, {1, "node m is silent"}}, start);
  CHECK(kinds(silent) == list{"hold", "hold"});
  CHECK(kinds(run.on_node_answers(0, start + 5s)) == list{"warn"});
  // The other is about to answer, too, or not.
  CHECK(run.on_tick(start + 6s).empty());
  CHECK(kinds(run.on_tick(start + 7s)) == list{"give up", "abort group", "start"});
  CHECK(run.goes_on());
}

TEST_CASE("if the data network is cut, the side that answers is kept, not the one with the lowest rank") {
  auto run = survivor(4);
  const auto report_without = [](std::uint32_t worker, std::vector<rank_id> unreachable) {
    auto result = report_of(worker);
    result.unreachable = std::move(unreachable);
    return result;
  };
  const auto far = std::vector<rank_id>{{2}, {3}};
  const auto near = std::vector<rank_id>{{0}, {1}};
  std::ignore = run.on_report(report_without(0, far), start);
  std::ignore = run.on_report(report_without(1, far), start);
  std::ignore = run.on_nodes_silent({{0, "node n is silent"}, {1, "node m is silent"}}, start);
  std::ignore = run.on_node_answers(1, start + 1s);
  std::ignore = run.on_report(report_without(2, near), start + 1s);
  const auto actions = run.on_report(report_without(3, near), start + 1s);
  const auto next = std::ranges::find_if(
      actions, [](const run_action& x) { return std::holds_alternative<form_generation>(x.what); });
  REQUIRE(next != actions.end());
  CHECK(std::get<form_generation>(next->what).record.workers == 2);
  for (const auto& each : actions)
    if (const auto* fenced = std::get_if<fence_worker>(&each.what))
      CHECK(fenced->worker.value < 2);
}

TEST_CASE("a failing run waits for silent nodes that alone have the state, and saves it when they answer") {
  auto run = survivor(4, 2, {.max_failures = 0});
  CHECK(kinds(run.on_ended(ended(3))) == list{"abort"});
  CHECK(run.on_nodes_silent({{0, "node n is silent"}, {1, "node m is silent"}}, start + 1s).empty());
  CHECK(run.on_tick(start + 3s).empty());
  CHECK(kinds(run.on_node_answers(0, start + 4s)) == list{"warn"});
  for (std::uint32_t i = 0; i < 2; ++i) {
    auto report = report_of(i);
    report.position = worker_position::between_steps{{step_id{7}, 0}};
    const auto actions = run.on_report(report, start + 4s);
    if (i == 0)
      CHECK(actions.empty());
  }
  // The other node is given up, since these have the state.
  const auto actions = run.on_tick(start + 7s);
  CHECK(kinds(actions) == list{"give up", "save"});
}

TEST_CASE("a silent worker is killed if others have the state, and its end is the failure") {
  auto run = survivor(4);
  auto actions = run.on_workers_silent(1, {{{3}, "its process is stopped"}}, start + 1s);
  REQUIRE(kinds(actions) == list{"fence"});
  CHECK(actions[0].why.find("is silent: its process is stopped") != std::string::npos);
  CHECK(run.failures().empty());
  CHECK_FALSE(run.awaits_answers());
  // Its node speaks of it until it is dead.
  CHECK(run.on_workers_silent(1, {{{3}, "its process is stopped"}}, start + 1s).empty());
  CHECK(kinds(run.on_ended(ended(3, "killed"))) == list{"abort group", "start"});
  CHECK(run.failures().size() == 1);
}

TEST_CASE("silent workers that alone have the state are waited for, and go on") {
  auto run = survivor(2);
  const auto both = std::vector<silent_worker>{{{0}, "it is stopped"}, {{1}, "it is stopped"}};
  const auto actions = run.on_workers_silent(0, both, start + 1s);
  REQUIRE(kinds(actions) == list{"hold", "hold"});
  CHECK(actions[0].why.find("300 s (failure.unreachable_after)") != std::string::npos);
  CHECK(run.awaits_answers());
  CHECK(run.on_tick(start + 300s).empty());
  CHECK(kinds(run.on_workers_silent(0, {{{1}, "it is stopped"}}, start + 300s)) == list{"warn"});
  // The other is about to answer, too.
  CHECK(run.awaits_answers());
  CHECK(kinds(run.on_workers_silent(0, {}, start + 301s)) == list{"warn"});
  CHECK_FALSE(run.awaits_answers());
  CHECK(run.on_tick(start + 400s).empty());
  CHECK(run.failures().empty());
}

TEST_CASE("silent workers are killed in the end, and the run restarts") {
  auto run = survivor(1);
  CHECK(kinds(run.on_workers_silent(0, {{{0}, "it is stopped"}}, start + 1s)) == list{"hold"});
  CHECK(kinds(run.on_tick(start + 302s)) == list{"fence"});
  CHECK(kinds(run.on_ended(ended(0, "killed"))) == list{"restart"});
}

TEST_CASE("a worker that a debugger holds is waited for, although others have the state") {
  auto run = survivor(4);
  const auto held = std::vector<silent_worker>{{{3}, "its process is held by a debugger", silence_kind::debugged}};
  const auto actions = run.on_workers_silent(1, held, start + 1s);
  REQUIRE(kinds(actions) == list{"hold"});
  CHECK(actions[0].why.find("(failure.debugger)") != std::string::npos);
  // Longer than a frozen one that alone has the state.
  CHECK(run.on_workers_silent(1, held, start + 1000s).empty());
  CHECK(run.on_tick(start + 1000s).empty());
  CHECK(kinds(run.on_workers_silent(1, {}, start + 1001s)) == list{"warn"});
  CHECK_FALSE(run.awaits_answers());
  CHECK(run.failures().empty());
  // The debugger lets it go, and it does not run.
  CHECK(kinds(run.on_workers_silent(1, held, start + 1002s)) == list{"hold"});
  CHECK(kinds(run.on_workers_silent(1, {{{3}, "it is stopped"}}, start + 1010s)) == list{"fence"});
}

TEST_CASE("a group that is lost because a debugger holds a member counts as no failure, and any other does") {
  const auto report = [] {
    auto result = report_of(0);
    result.reason = cut_off;
    return result;
  };
  auto run = survivor(4, 2, {.max_failures = 0});
  std::ignore = run.on_workers_silent(1, {{{3}, "its process is held by a debugger", silence_kind::debugged}}, start);
  CHECK(kinds(run.on_report(report(), start + 1s)) == list{"abort group"});
  CHECK(run.goes_on());
  auto other = survivor(4, 2, {.max_failures = 0});
  std::ignore = other.on_report(report(), start + 1s);
  CHECK_FALSE(other.goes_on());
}

TEST_CASE("a worker that a debugger holds is replaced where the configuration says so") {
  auto run = survivor(4, 2, {.debugger = debugger_mode::replace});
  const auto held = std::vector<silent_worker>{{{3}, "its process is held by a debugger", silence_kind::debugged}};
  CHECK(kinds(run.on_workers_silent(1, held, start + 1s)) == list{"fence"});
}

TEST_CASE("nobody waits for silent workers of a run that has not begun, or that ends") {
  auto begins = run_coordinator{settings_for(2)};
  CHECK(kinds(begins.on_workers_silent(0, {{{0}, "it is stopped"}}, start)) == list{"fence"});
  auto ends = releasing(2);
  CHECK(kinds(ends.on_workers_silent(0, {{{0}, "it is stopped"}}, start)) == list{"fence"});
  // Of another run, or long gone.
  CHECK(ends.on_workers_silent(0, {{{77}, "it is stopped"}}, start).empty());
}

TEST_CASE("joiners that have not applied a step yet are not known to have the state") {
  auto run = survivor(2, 1);
  CHECK(kinds(run.on_ended(ended(1, "killed"))) == list{"abort group", "start"});
  run.on_started({{{2}, {1}, 1, 0, 1}}, start);
  CHECK(kinds(run.on_ready(ready_of(2))) == list{"begin joiner"});
  auto report = report_of(0);
  report.position = worker_position::between_steps{{{5}, 0, {}}};
  CHECK(kinds(run.on_report(report, start)) == list{"form"});
  auto joiner = regroup_report{::run, {}, {2}, 0, worker_position::without_state{}, {}};
  CHECK(kinds(run.on_report(joiner, start)) == list{"command"});
  report.generation = {2};
  REQUIRE(kinds(run.on_report(report, start + 1s)) == list{"form"});
  // Worker 0 sends it the state, and falls silent.
  CHECK(kinds(run.on_nodes_silent({{0, "node n is silent"}}, start + 2s)) == list{"hold"});
  CHECK(run.on_tick(start + 3s).empty());
  // It has come through.
  run.on_applied({2}, {6});
  CHECK(kinds(run.on_tick(start + 4s)) == list{"give up", "abort group", "start"});
}

TEST_CASE("a silent node at the start is waited for, as a slow one is") {
  auto run = run_coordinator{settings_for(2)};
  CHECK(kinds(run.on_nodes_silent({{0, "node n is silent"}}, start)) == list{"warn"});
  CHECK(kinds(run.on_node_answers(0, start + 5s)) == list{"warn"});
  join_all(run, 2);
}

TEST_CASE("nobody waits for a silent node whose workers have returned, or whose results are known") {
  auto run = survivor(4);
  CHECK(run.on_finished(finished_by(0)).empty());
  CHECK(kinds(run.on_nodes_silent({{1, "node m is silent"}}, start)) == list{"give up", "abort group"});
  auto late = releasing(4);
  CHECK(late.on_nodes_silent({{0, "node n is silent"}}, start).empty());
  CHECK(late.on_tick(start + 1000s).empty());
}

TEST_CASE("a stop in training is a command, sent once, and the run ends as stopped") {
  auto run = training(2);
  auto actions = run.on_stop({false});
  REQUIRE(kinds(actions) == list{"command"});
  CHECK(std::get<send_command>(actions[0].what).command == control_command{::run, 1, stop_command{}});
  CHECK(run.on_stop({false}).empty());
  CHECK(run.on_checkpoint_request().empty());
  auto stopped = finished_by(0, {}, 5);
  stopped.stopped = true;
  CHECK(run.on_finished(stopped).empty());
  stopped.worker = {1};
  CHECK(kinds(run.on_finished(stopped)) == list{"release"});
  CHECK(run.on_ended(ended(0)).empty());
  CHECK(conclusion(run.on_ended(ended(1))) == conclude{run_status::stopped, {}});
  CHECK(run.final_step().value == 5);
}

TEST_CASE("a stop that came too late for the last step leaves the run completed") {
  auto run = training(1);
  CHECK(kinds(run.on_stop({false})) == list{"command"});
  CHECK(kinds(run.on_finished(finished_by(0))) == list{"release"});
  CHECK(conclusion(run.on_ended(ended(0))).status == run_status::completed);
}

TEST_CASE("a stop before training ends the run; one after the release waits for the end") {
  auto early = starting(2);
  auto actions = early.on_stop({false});
  CHECK(conclusion(actions).status == run_status::stopped);
  check_that_nothing_acts(early);
  auto late = releasing(2);
  CHECK(late.on_stop({false}).empty());
  CHECK(late.on_stop({true}).empty());
  CHECK_FALSE(late.over());
}

TEST_CASE("an immediate stop ends the run now, also after an ordinary one") {
  for (auto twice : {false, true}) {
    auto run = training(2);
    if (twice)
      std::ignore = run.on_stop({false});
    CHECK(conclusion(run.on_stop({true})).status == run_status::stopped);
    check_that_nothing_acts(run);
  }
}

TEST_CASE("a stop does not hide a failure") {
  auto run = failing();
  CHECK(run.on_stop({false}).empty());
  auto actions = run.on_stop({true});
  CHECK(conclusion(actions) == conclude{run_status::failed, user_bug});
}

TEST_CASE("commands are numbered") {
  auto run = training(1);
  for (std::uint64_t i = 1; i <= 3; ++i) {
    auto actions = run.on_checkpoint_request();
    REQUIRE(kinds(actions) == list{"command"});
    CHECK(std::get<send_command>(actions[0].what).command == control_command{::run, i, checkpoint_command{}});
  }
  CHECK(std::get<send_command>(run.on_stop({false})[0].what).command.sequence == 4);
}

TEST_CASE("a checkpoint is asked for in training only") {
  CHECK(starting(1).on_checkpoint_request().empty());
  CHECK(releasing(1).on_checkpoint_request().empty());
  CHECK(failing().on_checkpoint_request().empty());
}

TEST_CASE("workers that do not join in time are named") {
  auto run = starting(3);
  CHECK(run.on_ready(ready_of(1)).empty());
  // Settings of these tests allow no failure: there is no second try.
  auto actions = run.on_start_timeout();
  auto reason = conclusion(actions).reason;
  CHECK(reason.code == errc::timed_out);
  CHECK(says(reason, "worker 0 (rank 0), worker 2 (rank 2) did not join in time"));
  CHECK(says(reason, "run.start_timeout"));
  check_that_nothing_acts(run);
  CHECK(training(1).on_start_timeout().empty());
  CHECK(releasing(1).on_start_timeout().empty());
  CHECK(failing().on_start_timeout().empty());
}

TEST_CASE("nobody is waited for beyond the grace period") {
  auto failed = failing();
  CHECK(is_in_grace(failed));
  // It may be in a long step, with the state.
  for (auto now = run_coordinator::time{}; now <= run_coordinator::time{10s}; now += 200ms)
    CHECK(failed.on_tick(now).empty());
  CHECK(failed.on_tick(run_coordinator::time{11s}).empty());
  CHECK(failed.on_tick(run_coordinator::time{12s}).empty());
  CHECK(conclusion(failed.on_tick(run_coordinator::time{15s})) == conclude{run_status::failed, user_bug});
  check_that_nothing_acts(failed);
  auto released = releasing(2);
  CHECK(conclusion(released.on_grace_timeout()).status == run_status::completed);
  CHECK(training(1).on_grace_timeout().empty());
  CHECK(starting(1).on_grace_timeout().empty());
}

TEST_CASE("a stop says for whom it waits, and ends at once when it is asked for again") {
  const auto name = [](std::uint32_t node) { return "host-" + std::to_string(node); };
  const auto silent_at = run_coordinator::time{100s};
  auto run = training(4);
  std::ignore = run.on_nodes_silent({{0, "no beats"}, {1, "no beats"}}, silent_at);
  CHECK(run.stop_waits_for(silent_at, name).empty());
  CHECK(kinds(run.on_stop({false})) == list{"command"});
  CHECK(run.stop_waits_for(silent_at + 12s, name) == "node host-0, silent for 12 s; node host-1, silent for 12 s");
  std::ignore = run.on_node_answers(0, silent_at + 13s);
  CHECK(run.stop_waits_for(silent_at + 14s, name) == "node host-1, silent for 14 s");
  CHECK(conclusion(run.on_stop({true})).status == run_status::stopped);
  CHECK(run.stop_waits_for(silent_at + 15s, name).empty());
}

TEST_CASE("a stop names workers that do not run") {
  auto run = training(1);
  std::ignore = run.on_workers_silent(0, {{{0}, "its process is stopped"}}, run_coordinator::time{5s});
  std::ignore = run.on_stop({false});
  CHECK(run.stop_waits_for(run_coordinator::time{8s}, {}) == "worker 0 (rank 0), silent for 3 s");
}

TEST_CASE("replicas that differ at the end fail the run, whoever tells first and whatever the difference is") {
  auto same = finished_by(0);
  auto other_state = finished_by(1);
  other_state.state_sha256 = std::string(64, 'b');
  auto no_state = finished_by(1);
  no_state.state_sha256.clear();
  auto other_step = finished_by(1, {}, 9);
  for (const auto& different : {other_state, no_state, other_step})
    for (auto swapped : {false, true}) {
      auto run = training(2);
      CHECK(run.on_finished(swapped ? different : same).empty());
      auto actions = run.on_finished(swapped ? same : different);
      auto reason = conclusion(actions).reason;
      CHECK(reason.code == errc::mismatch);
      CHECK(says(reason, "uninitialised memory"));
      check_that_nothing_acts(run);
    }
}

TEST_CASE("a training function that tracks nothing ends at a step all the same") {
  auto run = training(2);
  auto first = finished_by(0, {}, 10);
  auto second = finished_by(1, {}, 9);
  first.state_sha256.clear();
  second.state_sha256.clear();
  CHECK(run.on_finished(first).empty());
  CHECK(conclusion(run.on_finished(second)).reason.code == errc::mismatch);
}
