#include "regroup_group.hpp"

using namespace troupe;
using namespace troupe::actors;
using namespace troupe::actors::testing;
using namespace std::chrono_literals;

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
