#include <troupe/actors/decisions/run_coordinator.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::actors;

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
  return {run, {1}, {worker}, worker_position::elsewhere{}, {}};
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
                                "hold",    "form",         "start",       "fence",         "restart", "release one",
                                "release", "warn",         "conclude"};
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

run_coordinator releasing(std::uint32_t workers) {
  auto result = training(workers);
  for (std::uint32_t i = 0; i < workers; ++i)
    REQUIRE(kinds(result.on_finished(finished_by(i))) == (i + 1 == workers ? list{"release"} : list{}));
  REQUIRE(result.in_grace());
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
  CHECK_FALSE(run.in_grace());
  CHECK(kinds(run.on_finished(finished_by(2))) == list{"release"});
  CHECK(run.in_grace());
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
  CHECK(says(conclusion(refused).reason, "the checkpoint"));
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
  CHECK(run.failures()[0].step.value == 4);
  CHECK_FALSE(run.failures()[0].consequence);
  CHECK(run.failures()[1].worker.value == 0);
  CHECK(run.failures()[1].consequence);
  CHECK(run.failures()[2].consequence);
  check_that_nothing_acts(run);
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
    CHECK(run->failures()[0].step.value == 3);
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
  CHECK(failed.in_grace());
  CHECK(conclusion(failed.on_grace_timeout()) == conclude{run_status::failed, user_bug});
  check_that_nothing_acts(failed);
  auto released = releasing(2);
  CHECK(conclusion(released.on_grace_timeout()).status == run_status::completed);
  CHECK(training(1).on_grace_timeout().empty());
  CHECK(starting(1).on_grace_timeout().empty());
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

// -- a simulated run
// ------------------------------------------------------------------------------------------------------------

namespace {

/// Workers, nodes and a driver that do what they may do, in an order that a seed decides: what each sends arrives in
/// order, what different ones send does not, anything may arrive twice, workers and nodes die, hang and throw.
class simulation {
 public:
  simulation(unsigned seed, std::uint32_t workers)
      : random_(seed), coordinator_(settings_for(workers, 1 + workers / 3)), workers_(workers) {
    for (std::uint32_t i = 0; i < workers; ++i)
      send(i, [this, i] { return coordinator_.on_ready(ready_of(i)); });
  }

  /// Runs to the end; returns the rounds that it took.
  int settle(int limit) {
    auto round = 0;
    for (; conclusions_ == 0 && round < limit; ++round) {
      if (chance(40))
        disturb();
      else
        go_on();
    }
    // Whatever is still under way arrives after the end.
    while (deliver_one())
      ;
    for (const auto& event : std::vector{past_})
      take(event());
    return round;
  }

  [[nodiscard]] const run_coordinator& coordinator() const { return coordinator_; }
  [[nodiscard]] int conclusions() const { return conclusions_; }
  [[nodiscard]] run_status status() const { return status_; }
  [[nodiscard]] bool anyone_failed() const { return trouble_; }

 private:
  using event = std::function<run_actions()>;

  enum class phase { starting, planning, waiting, training, finished, dead };

  struct worker {
    phase now = phase::starting;
    bool hangs = false;
    std::deque<event> sent;
    std::deque<event> sent_by_node;
  };

  bool chance(unsigned one_in) { return random_() % one_in == 0; }

  void send(std::uint32_t from, event what) { workers_[from].sent.push_back(std::move(what)); }

  void finish(std::uint32_t i, error reason, bool stopped = false) {
    if (workers_[i].hangs || workers_[i].now == phase::finished || workers_[i].now == phase::dead)
      return;
    trouble_ = trouble_ || reason.code != errc::none;
    workers_[i].now = phase::finished;
    send(i, [this, i, reason, stopped] {
      auto message = finished_by(i, reason);
      message.stopped = stopped;
      return coordinator_.on_finished(message);
    });
  }

  void die(std::uint32_t i, const std::string& how) {
    auto& who = workers_[i];
    if (who.now == phase::dead)
      return;
    // One that has returned may end unnoticed, if the driver hears of it after the release.
    trouble_ = trouble_ || who.now != phase::finished;
    who.now = phase::dead;
    who.sent_by_node.push_back([this, i, how] { return coordinator_.on_ended(ended(i, how)); });
  }

  void disturb() {
    auto i = static_cast<std::uint32_t>(random_() % workers_.size());
    switch (random_() % 8) {
    case 0:
      return die(i, "killed by signal 9 (SIGKILL)");
    case 1:
      if (workers_[i].now == phase::training || workers_[i].now == phase::planning)
        finish(i, user_bug);
      return;
    case 2:
      workers_[i].hangs = true;
      return;
    case 3: {
      auto node = static_cast<std::uint32_t>(random_() % (workers_.size() / (1 + workers_.size() / 3) + 1));
      for (std::uint32_t k = 0; k < workers_.size(); ++k)
        if (k / (1 + workers_.size() / 3) == node) {
          // What it was about to say is lost with the connection.
          trouble_ = trouble_ || !released_;
          workers_[k].now = phase::dead;
          workers_[k].sent.clear();
          workers_[k].sent_by_node.clear();
        }
      return take(coordinator_.on_node_lost(node, "node"));
    }
    case 4:
      return take(coordinator_.on_stop({chance(4)}));
    case 5:
      return take(coordinator_.on_checkpoint_request());
    case 6:
      coordinator_.on_applied({i}, {random_() % 10});
      return;
    default:
      if (!past_.empty())
        take(past_[random_() % past_.size()]());
    }
  }

  /// Delivers a message, or lets training go on, or lets time pass when there is nothing else.
  void go_on() {
    if (deliver_one() || train())
      return;
    take(coordinator_.on_start_timeout());
    take(coordinator_.on_grace_timeout());
    // Nothing notices a worker that hangs in training: somebody kills it.
    for (std::uint32_t i = 0; i < workers_.size() && conclusions_ == 0; ++i)
      if (workers_[i].now != phase::dead)
        return die(i, "killed by signal 15 (SIGTERM)");
  }

  bool deliver_one() {
    std::vector<std::deque<event>*> queues;
    for (auto& who : workers_)
      for (auto* queue : {&who.sent, &who.sent_by_node})
        if (!queue->empty())
          queues.push_back(queue);
    if (queues.empty())
      return false;
    auto& queue = *queues[random_() % queues.size()];
    auto what = std::move(queue.front());
    queue.pop_front();
    past_.push_back(what);
    take(what());
    return true;
  }

  bool train() {
    auto all = std::ranges::all_of(workers_, [](const worker& x) { return x.now == phase::training && !x.hangs; });
    auto moved = false;
    for (std::uint32_t i = 0; i < workers_.size(); ++i)
      if (workers_[i].now == phase::training && !workers_[i].hangs) {
        // Alone at the barrier, a worker is cut off in the end.
        finish(i, all ? error{} : cut_off, all && stop_);
        moved = true;
      }
    return moved;
  }

  void take(const run_actions& actions) {
    for (const auto& each : actions) {
      CHECK(conclusions_ == 0);
      std::visit([this](const auto& what) { obey(what); }, each.what);
      CHECK_FALSE(trouble_with_membership_);
    }
  }

  // These workers are allowed no failure: nobody comes, and nobody goes on without another.
  template <class Other>
  void obey(const Other&) {
    trouble_with_membership_ = true;
  }

  void obey(const begin_all&) {
    CHECK(++begun_ == 1);
    for (std::uint32_t i = 0; i < workers_.size(); ++i)
      if (workers_[i].now == phase::starting) {
        workers_[i].now = phase::planning;
        auto plan = plan_of(i);
        plan.steps += chance(200) ? 1 : 0;
        send(i, [this, plan] { return coordinator_.on_plan(plan); });
      }
  }
  void obey(const accept_plans&) {
    CHECK(begun_ == 1);
    for (auto& who : workers_)
      if (who.now == phase::planning)
        who.now = phase::training;
  }
  void obey(const refuse_plans& x) {
    trouble_ = true;
    for (std::uint32_t i = 0; i < workers_.size(); ++i)
      if (workers_[i].now == phase::planning)
        finish(i, x.reason);
  }
  void obey(const send_command& x) {
    CHECK(x.command.sequence == ++commands_);
    CHECK_FALSE(stop_);
    stop_ = std::holds_alternative<stop_command>(x.command.what);
  }
  void obey(const abort_all& x) {
    CHECK(++aborted_ == 1);
    CHECK(x.reason.code == errc::aborted);
    for (std::uint32_t i = 0; i < workers_.size(); ++i)
      finish(i, x.reason);
  }
  void obey(const release_all&) {
    CHECK_FALSE(released_);
    CHECK(aborted_ == 0);
    released_ = true;
    for (std::uint32_t i = 0; i < workers_.size(); ++i)
      if (!workers_[i].hangs)
        die(i, "exit code 0");
  }
  void obey(const conclude& x) {
    ++conclusions_;
    status_ = x.status;
    CHECK(coordinator_.over());
    CHECK((aborted_ == 0 || x.status == run_status::failed));
    CHECK((x.status == run_status::failed) == (x.reason.code != errc::none && x.reason.code != errc::stopped));
    // The nodes end what is left, and say so late.
    for (std::uint32_t i = 0; i < workers_.size(); ++i)
      die(i, "killed by signal 9 (SIGKILL)");
  }

  std::mt19937 random_;
  bool trouble_with_membership_ = false;
  run_coordinator coordinator_;
  std::vector<worker> workers_;
  std::vector<event> past_;
  int begun_ = 0;
  int aborted_ = 0;
  int conclusions_ = 0;
  std::uint64_t commands_ = 0;
  bool stop_ = false;
  bool released_ = false;
  bool trouble_ = false;
  run_status status_ = run_status::failed;
};

} // namespace

TEST_CASE("whatever happens in whatever order, a run ends once, in bounded rounds, and does nothing after it") {
  constexpr auto first_seed = 20260201u;
  MESSAGE("seeds from ", first_seed);
  std::map<run_status, int> seen;
  for (std::uint32_t workers = 1; workers <= 8; ++workers)
    for (unsigned i = 0; i < 500; ++i) {
      auto seed = first_seed + i;
      CAPTURE(seed);
      CAPTURE(workers);
      auto world = simulation{seed, workers};
      auto limit = static_cast<int>(100 + 40 * workers);
      CHECK(world.settle(limit) < limit);
      CHECK(world.conclusions() == 1);
      ++seen[world.status()];
      const auto& failures = world.coordinator().failures();
      if (world.status() == run_status::completed)
        CHECK_FALSE(world.anyone_failed());
      if (world.status() != run_status::failed)
        continue;
      REQUIRE_FALSE(failures.empty());
      CHECK_FALSE(failures[0].consequence);
      auto is_cause = [](const failure_record& x) { return x.reason.code != errc::aborted; };
      CHECK(is_cause(failures[0]) == std::ranges::any_of(failures, is_cause));
      for (std::size_t k = 1; k < failures.size(); ++k)
        if (!is_cause(failures[k]))
          CHECK(failures[k].consequence);
    }
  // A walk that never gets anywhere would prove nothing.
  CHECK(seen[run_status::completed] > 100);
  CHECK(seen[run_status::stopped] > 50);
  CHECK(seen[run_status::failed] > 100);
}

// -- a simulated run that heals
// ------------------------------------------------------------------------------------------------------------

namespace {

/// How often each thing happened that a walk is to see.
struct walk_counts {
  std::map<run_status, int> ends;
  int redone = 0;
  int applied_by_all = 0;
  int joined = 0;
  int released = 0;
  int held = 0;
  int restarted = 0;
  int stopped_replacing = 0;
  int refused_joiners = 0;
};

/// Workers that train in steps as real ones do: reduce together, pass the barrier one by one, report when they are cut
/// off or told to. They die, throw, come up wrong; nodes are lost and leave; people resize, pause and stop. What is
/// sent arrives in order on each way, and anyhow between the ways.
class healing_simulation {
 public:
  healing_simulation(unsigned seed, walk_counts& seen) : random_(seed), seen_(seen), coordinator_(make_settings()) {
    for (const auto& place : first_places_)
      start(place);
  }

  /// Runs to the end; returns the rounds that it took.
  int settle(int limit) {
    auto round = 0;
    for (; conclusions_ == 0 && round < limit; ++round) {
      if (troubles_left_ > 0 && chance(12)) {
        --troubles_left_;
        disturb();
      } else if (!(chance(4) && train_one()) && !deliver_one() && !train_one()) {
        let_time_pass();
      }
    }
    while (deliver_one())
      ;
    return round;
  }

  [[nodiscard]] const run_coordinator& coordinator() const { return coordinator_; }
  [[nodiscard]] int conclusions() const { return conclusions_; }
  [[nodiscard]] const conclude& end() const { return end_; }

 private:
  enum class life { starting, ready, planning, forming, training, waiting, finished, dead };

  struct worker {
    worker_place place;
    life now = life::starting;
    bool wrong_build = false;
    bool agreed = false;
    bool has_state = false;
    bool holds = false;
    std::uint64_t generation = 0;
    std::uint64_t aborted = 0;
    std::uint64_t committed = 0;
    std::uint64_t commands_done = 0;
    /// What the barrier of the step that is held has agreed on.
    std::uint64_t commands_held = 0;
    std::vector<control_command> commands;
    std::optional<regroup_report> last_report;
    std::deque<std::function<void()>> inbox;
    std::deque<std::function<run_actions()>> outbox;
    std::deque<std::function<run_actions()>> from_node;

    [[nodiscard]] bool lives() const { return now != life::dead; }
    [[nodiscard]] bool is_in_group() const { return now == life::forming || now == life::training; }
  };

  static constexpr std::uint64_t steps = 12;
  static constexpr std::uint32_t nodes = 3;

  run_coordinator::settings make_settings() {
    auto n = 1 + pick(4);
    auto result = settings_for(n, 2);
    first_places_ = result.places;
    result.workers = chance(2) ? worker_range{1 + pick(n), 5} : worker_range{n};
    result.failure = {};
    return result;
  }

  std::uint32_t pick(std::uint64_t n) { return static_cast<std::uint32_t>(random_() % n); }
  bool chance(unsigned one_in) { return pick(one_in) == 0; }
  run_coordinator::time now() const { return run_coordinator::time{} + std::chrono::hours{1} + elapsed_; }

  // -- workers --------------------------------------------------------------------------------------------------------

  void start(const worker_place& place) {
    auto& who = workers_[place.worker.value];
    who.place = place;
    who.wrong_build = began_once_ && chance(8);
    auto i = place.worker.value;
    who.outbox.push_back([this, i] {
      // The trainer asks before it hands this on.
      if (!coordinator_.expects({i})) {
        end(i, 1);
        return run_actions{};
      }
      auto message = ready_of(i);
      message.build_id = workers_[i].wrong_build ? "decaf" : "c0ffee";
      if (workers_[i].lives())
        workers_[i].now = life::ready;
      return coordinator_.on_ready(message);
    });
  }

  /// The process is gone; what it has sent still arrives.
  void end(std::uint32_t i, int status) {
    auto& who = workers_[i];
    if (!who.lives())
      return;
    who.now = life::dead;
    who.inbox.clear();
    who.from_node.push_back([this, i, status] {
      auto message = ended(i, status == 137 ? "killed by signal 9 (SIGKILL)" : "exit code " + std::to_string(status));
      message.exit_status = status;
      return coordinator_.on_ended(message, now());
    });
  }

  void finish(std::uint32_t i, error reason, bool stopped = false) {
    auto& who = workers_[i];
    if (!who.lives() || who.now == life::finished)
      return;
    who.now = life::finished;
    worker_finished message;
    message.run = run;
    message.generation = {who.generation};
    message.worker = {i};
    message.step = {who.committed};
    message.stopped = stopped;
    message.state_sha256 = reason.code == errc::none ? "state " + std::to_string(who.committed) : "";
    message.reason = std::move(reason);
    who.outbox.push_back([this, message] { return coordinator_.on_finished(message, now()); });
  }

  void propose(std::uint32_t i) {
    auto& who = workers_[i];
    who.now = life::planning;
    auto plan = plan_of(i);
    plan.generation = {who.generation};
    who.outbox.push_back([this, i, plan] {
      auto is_joiner = plan.generation == generation_id{};
      if ((!is_joiner && plan.generation != coordinator_.generation()) ||
          (!coordinator_.training() && !(is_joiner && coordinator_.goes_on()))) {
        tell(i, [this, i] { report_if(i, life::planning, false); });
        return run_actions{};
      }
      return coordinator_.on_plan(plan);
    });
  }

  void report_if(std::uint32_t i, life expected, bool between_steps) {
    auto& who = workers_[i];
    if (who.now != expected)
      return;
    who.now = life::waiting;
    regroup_report message;
    message.run = run;
    message.generation = {who.generation};
    message.worker = {i};
    const auto progress = worker_progress{{who.committed}, who.commands_done, 0};
    if (who.has_state && between_steps)
      message.position = worker_position::between_steps{progress};
    else if (who.has_state)
      message.position = worker_position::in_step{progress, who.holds};
    message.reason = between_steps ? error{} : cut_off;
    who.last_report = message;
    who.outbox.push_back([this, message] { return coordinator_.on_report(message, now()); });
  }

  void tell(std::uint32_t i, std::function<void()> what) {
    if (workers_[i].lives())
      workers_[i].inbox.push_back(std::move(what));
  }

  [[nodiscard]] bool has_joined(std::uint32_t i) const {
    auto now = workers_.at(i).now;
    return now != life::starting && now != life::dead;
  }

  /// What the commands say that a barrier has agreed on.
  void obey_commands(std::uint32_t i, std::uint64_t agreed) {
    auto& who = workers_[i];
    auto regroup = false;
    auto stop = false;
    for (const auto& command : who.commands)
      if (command.sequence > who.commands_done && command.sequence <= agreed) {
        stop = stop || std::holds_alternative<stop_command>(command.what);
        if (const auto* regroups = std::get_if<regroup_command>(&command.what))
          regroup = regroup || regroups->generation.value == who.generation;
        if (std::holds_alternative<checkpoint_command>(command.what))
          checkpointed_ = std::max(checkpointed_, who.committed);
      }
    who.commands_done = std::max(who.commands_done, agreed);
    if (stop || who.committed >= steps)
      finish(i, {}, stop);
    else if (regroup)
      report_if(i, life::training, true);
  }

  void enter(std::uint32_t i, const member_place& next) {
    auto& who = workers_[i];
    if (who.now != life::waiting)
      return;
    if (who.has_state) {
      // Nothing is lost, and nothing that was applied is taken back.
      auto behind = who.committed + 1 == next.commit_point.value && who.holds;
      CHECK((who.committed == next.commit_point.value || behind));
      seen_.applied_by_all += behind ? 1 : 0;
    }
    who.generation = next.place.generation.value;
    who.committed = next.commit_point.value;
    who.holds = false;
    who.now = life::forming;
    if (!who.has_state)
      who.commands_done = next.commands_agreed;
    if (who.aborted >= who.generation)
      report_if(i, life::forming, false);
    else
      forming_agreed_[i] = next.commands_agreed;
  }

  /// One that is in a group gets on, or finds that it does not.
  bool train_one() {
    std::vector<std::uint32_t> able;
    for (const auto& [i, who] : workers_)
      if (who.is_in_group())
        able.push_back(i);
    while (!able.empty()) {
      auto at = pick(able.size());
      if (advance(able[at]))
        return true;
      able.erase(able.begin() + at);
    }
    return false;
  }

  bool advance(std::uint32_t i) {
    auto& who = workers_[i];
    if (who.holds) {
      who.holds = false;
      ++who.committed;
      obey_commands(i, who.commands_held);
      return true;
    }
    const auto& group = groups_[who.generation];
    auto is_here = [&](std::uint32_t k) { return workers_[k].generation == who.generation && workers_[k].lives(); };
    if (!std::ranges::all_of(group, is_here)) {
      // A peer is dead, or has left.
      report_if(i, who.now, false);
      return true;
    }
    if (!std::ranges::all_of(group, [&](std::uint32_t k) { return workers_[k].now == who.now && !workers_[k].holds; }))
      return false;
    if (who.now == life::forming) {
      for (auto k : group) {
        workers_[k].has_state = true;
        if (!workers_[k].agreed) {
          propose(k);
          continue;
        }
        workers_[k].now = life::training;
        obey_commands(k, forming_agreed_[k]);
      }
      return true;
    }
    auto agreed = ~std::uint64_t{0};
    for (auto k : group) {
      CHECK(workers_[k].committed == who.committed);
      agreed = std::min(agreed, workers_[k].commands.empty() ? 0 : workers_[k].commands.back().sequence);
    }
    for (auto k : group) {
      workers_[k].holds = true;
      workers_[k].commands_held = agreed;
    }
    return true;
  }

  // -- the world ------------------------------------------------------------------------------------------------------

  bool deliver_one() {
    std::vector<std::pair<worker*, int>> queues;
    for (auto& [i, who] : workers_) {
      if (!who.inbox.empty())
        queues.emplace_back(&who, 0);
      if (!who.outbox.empty())
        queues.emplace_back(&who, 1);
      if (!who.from_node.empty())
        queues.emplace_back(&who, 2);
    }
    if (queues.empty())
      return false;
    auto [who, which] = queues[pick(queues.size())];
    if (which == 0) {
      auto what = std::move(who->inbox.front());
      who->inbox.pop_front();
      what();
      return true;
    }
    auto& queue = which == 1 ? who->outbox : who->from_node;
    auto what = std::move(queue.front());
    queue.pop_front();
    take(what());
    return true;
  }

  std::optional<std::uint32_t> someone(std::function<bool(const worker&)> wanted) {
    std::vector<std::uint32_t> found;
    for (const auto& [i, who] : workers_)
      if (who.lives() && wanted(who))
        found.push_back(i);
    return found.empty() ? std::nullopt : std::optional{found[pick(found.size())]};
  }

  void disturb() {
    switch (pick(15)) {
    case 0:
    case 1:
    case 2:
      if (auto i = someone([](const worker&) { return true; }))
        end(*i, 137);
      return;
    case 3:
      if (auto i = someone([this](const worker& x) { return !x.has_state && began_once_; }))
        end(*i, 1);
      return;
    case 4:
      if (auto i = someone([](const worker& x) { return x.now == life::training; }))
        finish(*i, {errc::user_error, "out of range"});
      return;
    case 5: {
      auto node = pick(nodes);
      for (auto& [i, who] : workers_)
        if (who.place.node == node) {
          who.now = life::dead;
          who.inbox.clear();
          who.outbox.clear();
          who.from_node.clear();
        }
      return take(coordinator_.on_node_lost(node, "the node", now()));
    }
    case 6: {
      auto node = pick(nodes);
      somebody_leaves_ = true;
      return take(coordinator_.on_node_leaving(node, chance(2)));
    }
    case 7:
      return take(coordinator_.on_drain_timeout());
    case 8:
      return take(coordinator_.on_resize(1 + pick(5)));
    case 9:
      return take(coordinator_.on_pause());
    case 10:
      return take(coordinator_.on_resume());
    case 11:
      return take(chance(3) ? coordinator_.on_stop({chance(4)}) : coordinator_.on_capacity());
    case 12:
      return take(coordinator_.on_checkpoint_request());
    case 13:
      // What was said of a generation that is over is heard late.
      if (auto i = someone([this](const worker& x) {
            return x.last_report && x.last_report->progress() != nullptr &&
                   x.last_report->generation < coordinator_.generation();
          })) {
        auto refused = coordinator_.on_report(*workers_[*i].last_report, now());
        REQUIRE(refused.size() == 1);
        CHECK(std::holds_alternative<refuse_report>(refused[0].what));
      }
      return;
    default:
      // Somebody is slow to hear: it is cut off by itself.
      if (auto i = someone([](const worker& x) { return x.now == life::training && !x.holds; }))
        report_if(*i, life::training, false);
    }
  }

  void let_time_pass() {
    elapsed_ += std::chrono::seconds{1};
    take(coordinator_.on_tick(now()));
    take(coordinator_.on_drain_timeout());
    if (coordinator_.held()) {
      take(coordinator_.on_resume());
      if (coordinator_.held())
        take(chance(3) ? coordinator_.on_hold_timeout() : coordinator_.on_capacity());
    }
    if (coordinator_.in_grace())
      take(coordinator_.on_grace_timeout());
    if (coordinator_.starting())
      take(coordinator_.on_start_timeout());
  }

  // -- what the coordinator wants
  // ---------------------------------------------------------------------------------------

  void take(const run_actions& actions) {
    for (const auto& each : actions) {
      CHECK_FALSE(each.why.empty());
      // Whoever still asks is told, nothing else happens after the end.
      CAPTURE(each.what.index());
      CHECK((conclusions_ == 0 || std::holds_alternative<refuse_report>(each.what)));
      std::visit([this](const auto& what) { obey(what); }, each.what);
    }
  }

  void obey(const begin_all&) {
    began_once_ = true;
    auto generation = coordinator_.generation().value;
    for (auto& [i, who] : workers_)
      if (coordinator_.knows({i}) && who.now != life::starting) {
        groups_[generation].push_back(i);
        tell(i, [this, i = i, generation] {
          auto& x = workers_[i];
          x.generation = generation;
          x.has_state = true;
          x.committed = checkpointed_at_start_;
          propose(i);
        });
      }
  }

  // The states here are small.
  void obey(const stage_joiners&) { FAIL("nobody waits long for so small a state"); }
  void obey(const skip_loop&) { FAIL("there is one loop"); }
  void obey(const end_staging&) { FAIL("there is no staging group"); }

  void obey(const begin_joiner& x) {
    auto i = x.worker.value;
    for (const auto& command : commands_)
      tell(i, [this, i, command] { workers_[i].commands.push_back(command); });
    tell(i, [this, i] { propose(i); });
  }

  void obey(const accept_plans&) {
    for (auto& [i, who] : workers_)
      tell(i, [this, i = i] {
        auto& x = workers_[i];
        if (x.now != life::planning || !x.has_state)
          return;
        x.agreed = true;
        x.now = life::training;
        obey_commands(i, x.commands_done);
      });
  }

  void obey(const accept_plan_of& x) {
    auto i = x.worker.value;
    tell(i, [this, i] {
      workers_[i].agreed = true;
      report_if(i, life::planning, false);
    });
  }

  void obey(const refuse_plans&) { FAIL_CHECK("all have the same plan"); }

  void obey(const refuse_report& x) {
    auto i = x.worker.value;
    tell(i, [this, i, reason = x.reason] {
      if (workers_[i].now == life::waiting)
        finish(i, reason);
    });
  }

  void obey(const send_command& x) {
    commands_.push_back(x.command);
    for (auto& [i, who] : workers_)
      if (has_joined(i))
        tell(i, [this, i = i, command = x.command] { workers_[i].commands.push_back(command); });
  }

  void abort_everybody(const error&) {
    auto generation = coordinator_.generation().value;
    for (auto& [i, who] : workers_)
      if (has_joined(i))
        tell(i, [this, i = i, generation] {
          auto& x = workers_[i];
          x.aborted = std::max(x.aborted, generation);
          if (x.is_in_group() || x.now == life::planning)
            report_if(i, x.now, false);
        });
  }

  void obey(const abort_generation& x) { abort_everybody(x.reason); }

  void obey(const abort_all& x) {
    CHECK(++aborted_ == 1);
    abort_everybody(x.reason);
    // Nobody waits for an answer that does not come.
    for (auto& [i, who] : workers_)
      tell(i, [this, i = i, reason = x.reason] {
        if (workers_[i].now == life::waiting)
          finish(i, reason);
      });
  }

  void obey(const hold&) { ++seen_.held; }

  void obey(const form_generation& x) {
    CHECK(x.record.generation == coordinator_.generation());
    CHECK(x.record.generation.value > last_generation_);
    last_generation_ = x.record.generation.value;
    CHECK(x.decision.commit_point >= step_id{settled_});
    settled_ = x.decision.commit_point.value;
    CHECK(x.record.workers == x.places.size());
    CHECK_FALSE(x.places.empty());
    seen_.redone += static_cast<int>(x.record.steps_redone);
    seen_.joined += static_cast<int>(x.joiners.size());
    seen_.released += static_cast<int>(x.released.size());
    auto with_state = std::size_t{0};
    for (std::uint32_t rank = 0; rank < x.places.size(); ++rank) {
      CHECK(x.places[rank].rank == rank_id{rank});
      auto i = x.places[rank].worker.value;
      groups_[last_generation_].push_back(i);
      auto is_new = std::ranges::find(x.joiners, worker_id{i}) != x.joiners.end();
      if (workers_[i].lives())
        CHECK(is_new == !workers_[i].has_state);
      with_state += is_new ? 0 : 1;
      // Who has no state gets it, and who leaves may leave, where nobody is in the middle of anything.
      if (!is_new && (!x.joiners.empty() || !x.released.empty()))
        CHECK(workers_[i].last_report->is<worker_position::between_steps>());
      member_place next;
      next.place.generation = {last_generation_};
      next.commit_point = x.decision.commit_point;
      next.commands_agreed = x.decision.commands_agreed;
      tell(i, [this, i, next] { enter(i, next); });
    }
    CHECK(with_state > 0);
    for (auto worker : x.released)
      end(worker.value, 0);
  }

  void obey(const start_more& x) {
    CHECK_FALSE(stop_was_sent());
    std::vector<worker_place> places;
    auto occupied = coordinator_.occupied().size();
    for (auto n = pick(x.count + 1); n > 0 && occupied + places.size() < 8; --n) {
      auto id = static_cast<std::uint32_t>(workers_.size() + places.size());
      places.push_back({{id}, {id}, pick(nodes), 0, 1});
    }
    coordinator_.on_started(places, now());
    for (const auto& place : places)
      start(place);
  }

  void obey(const fence_worker& x) {
    ++seen_.refused_joiners;
    end(x.worker.value, 137);
  }

  void obey(const restart_run&) {
    ++seen_.restarted;
    // Not while somebody has the state, unless all were to go.
    for (auto& [i, who] : workers_)
      if (!somebody_leaves_ && who.has_state && who.generation + 1 == coordinator_.generation().value)
        CHECK((!who.lives() || who.now == life::finished));
    for (auto& [i, who] : workers_)
      end(i, 137);
    commands_.clear();
    settled_ = checkpointed_;
    checkpointed_at_start_ = checkpointed_;
    std::vector<worker_place> places;
    for (auto n = 1 + pick(3); n > 0; --n) {
      auto id = static_cast<std::uint32_t>(workers_.size() + places.size());
      places.push_back({{id}, {static_cast<std::uint32_t>(places.size())}, pick(nodes), 0, 1});
    }
    coordinator_.on_restarted(places, std::nullopt, {checkpointed_});
    for (const auto& place : places) {
      start(place);
      workers_[place.worker.value].wrong_build = false;
    }
  }

  void obey(const release_one& x) {
    auto i = x.worker.value;
    tell(i, [this, i] { end(i, 0); });
  }

  void obey(const release_all&) {
    for (auto& [i, who] : workers_)
      if (has_joined(i))
        tell(i, [this, i = i] { end(i, 0); });
  }

  void obey(const warn&) { ++seen_.stopped_replacing; }

  void obey(const conclude& x) {
    ++conclusions_;
    end_ = x;
    CHECK(coordinator_.over());
    CHECK((x.status == run_status::failed) == (x.reason.code != errc::none && x.reason.code != errc::stopped));
    if (x.status == run_status::completed)
      CHECK(coordinator_.final_step() == step_id{steps});
    // No invariant is broken on the way, and no replica differs.
    CAPTURE(x.reason.message);
    CHECK(x.reason.code != errc::internal);
    CHECK(x.reason.code != errc::mismatch);
    CHECK(x.reason.code != errc::aborted);
    for (auto& [i, who] : workers_)
      end(i, 137);
  }

  [[nodiscard]] bool stop_was_sent() const {
    return std::ranges::any_of(commands_, [](const auto& x) { return std::holds_alternative<stop_command>(x.what); });
  }

  std::mt19937 random_;
  walk_counts& seen_;
  std::vector<worker_place> first_places_;
  run_coordinator coordinator_;
  std::map<std::uint32_t, worker> workers_;
  std::map<std::uint64_t, std::vector<std::uint32_t>> groups_;
  std::map<std::uint32_t, std::uint64_t> forming_agreed_;
  std::vector<control_command> commands_;
  std::chrono::seconds elapsed_{};
  std::uint64_t last_generation_ = 1;
  std::uint64_t settled_ = 0;
  std::uint64_t checkpointed_ = 0;
  std::uint64_t checkpointed_at_start_ = 0;
  int troubles_left_ = 8;
  int aborted_ = 0;
  int conclusions_ = 0;
  bool began_once_ = false;
  bool somebody_leaves_ = false;
  conclude end_;
};

} // namespace

TEST_CASE("whoever comes, goes, dies and pauses in whatever order, a run heals or ends once, and no replica differs") {
  constexpr auto first_seed = 20260401u;
  MESSAGE("seeds from ", first_seed);
  walk_counts seen;
  for (unsigned i = 0; i < 3000; ++i) {
    auto seed = first_seed + i;
    CAPTURE(seed);
    auto world = healing_simulation{seed, seen};
    constexpr auto limit = 3000;
    CHECK(world.settle(limit) < limit);
    CHECK(world.conclusions() == 1);
    ++seen.ends[world.end().status];
    // Each process fails once at most.
    std::set<worker_id> failed;
    for (const auto& each : world.coordinator().failures())
      if (each.reason.code == errc::worker_lost || each.reason.code == errc::node_lost)
        CHECK(failed.insert(each.worker).second);
  }
  MESSAGE("completed ", seen.ends[run_status::completed], ", stopped ", seen.ends[run_status::stopped], ", failed ",
          seen.ends[run_status::failed], ", redone ", seen.redone, ", applied by all ", seen.applied_by_all,
          ", joined ", seen.joined, ", released ", seen.released, ", held ", seen.held, ", restarted ", seen.restarted,
          ", fenced ", seen.refused_joiners, ", warned ", seen.stopped_replacing);
  for (auto count : {seen.ends[run_status::completed], seen.ends[run_status::stopped], seen.ends[run_status::failed],
                     seen.redone, seen.applied_by_all, seen.joined, seen.released, seen.held, seen.restarted,
                     seen.refused_joiners, seen.stopped_replacing})
    CHECK(count > 20);
}
