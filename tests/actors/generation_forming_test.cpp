#include <troupe/actors/decisions/generation_forming.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

/// An active worker that has reported.
worker_record& add_member(worker_table& workers, std::uint32_t id, std::uint32_t node, bool has_state = true) {
  workers.add({{id}, {id}, node, 0, 1}, {}, {});
  auto& who = *workers.find({id});
  regroup_report report;
  report.worker = {id};
  if (has_state)
    report.position = worker_position::between_steps{{{5}, 0, 0}};
  who.stands = standing::active{{}, report, {}};
  who.came_after = step_id{0};
  return who;
}

/// It was in the next step.
void interrupt(worker_record& who) {
  who.as<standing::active>()->report->position = worker_position::in_step{{{5}, 0, 0}};
}

} // namespace

TEST_CASE("reports are complete when all active workers have reported") {
  worker_table workers;
  CHECK_FALSE(collect_reports(workers));
  add_member(workers, 0, 0);
  add_member(workers, 1, 0, false);
  workers.add({{2}, {2}, 0, 0, 1}, {}, {});
  auto reports = collect_reports(workers);
  REQUIRE(reports);
  CHECK(reports->members.size() == 2);
  CHECK(reports->with_state.size() == 1);
  CHECK(reports->point == report_point::boundary);
  interrupt(*workers.find({0}));
  CHECK(collect_reports(workers)->point == report_point::in_step);
  workers.find({1})->as<standing::active>()->report.reset();
  CHECK_FALSE(collect_reports(workers));
}

TEST_CASE("a member leaves where somebody stays who has the state, at a boundary only") {
  worker_table workers;
  add_member(workers, 0, 0);
  auto& leaver = add_member(workers, 1, 0);
  leaver.leaves = departure::surplus;
  std::vector<worker_id> released;
  interrupt(leaver);
  CHECK(choose_staying(*collect_reports(workers), released).size() == 2);
  CHECK(released.empty());
  leaver.as<standing::active>()->report->position = worker_position::between_steps{{{5}, 0, 0}};
  CHECK(choose_staying(*collect_reports(workers), released).size() == 1);
  CHECK(released == std::vector<worker_id>{{1}});
  CHECK(leaver.is<standing::released>());
}

TEST_CASE("if all leave, they stay until others have the state") {
  worker_table workers;
  add_member(workers, 0, 0).leaves = departure::with_node;
  add_member(workers, 1, 1, false);
  std::vector<worker_id> released;
  CHECK(choose_staying(*collect_reports(workers), released).size() == 2);
  CHECK(released.empty());
}

TEST_CASE("a member that did not get the state waits again where it cannot get it now") {
  worker_table workers;
  interrupt(add_member(workers, 0, 0));
  auto& joiner = add_member(workers, 1, 0, false);
  joiner.as<standing::active>()->history.stagings = 2;
  std::vector<worker_id> released;
  CHECK(choose_staying(*collect_reports(workers), released).size() == 1);
  REQUIRE(joiner.is<standing::waiting>());
  CHECK(history_of(joiner.stands).stagings == 2);
}

TEST_CASE("ranks close up by node, and joiners come after the members of theirs") {
  worker_table workers;
  auto& first = add_member(workers, 0, 0);
  auto& second = add_member(workers, 2, 1);
  workers.add({{5}, {9}, 0, 0, 1}, {}, {});
  auto& joiner = *workers.find({5});
  joiner.stands = standing::waiting{};
  form_generation next;
  seat_members({&first, &second, &joiner}, {5}, next);
  CHECK(next.places == std::vector<worker_place>{{{0}, {0}, 0, 0, 2}, {{5}, {1}, 0, 1, 2}, {{2}, {2}, 1, 0, 1}});
  CHECK(next.joiners == std::vector<worker_id>{{5}});
  CHECK(next.compared == std::vector<worker_id>{{5}, {0}});
  CHECK(joiner.is_active());
  CHECK(joiner.came_after == step_id{5});
  CHECK_FALSE(first.as<standing::active>()->report);
}

TEST_CASE("a step that somebody was in is redone unless it counts") {
  worker_table workers;
  auto& who = add_member(workers, 0, 0);
  CHECK_FALSE(describe_interruption(*collect_reports(workers), {5}).interrupted_step);
  interrupt(who);
  CHECK(describe_interruption(*collect_reports(workers), {5}).steps_redone == 1);
  const auto counts = describe_interruption(*collect_reports(workers), {6});
  CHECK(counts.interrupted_step);
  CHECK(counts.steps_redone == 0);
}
