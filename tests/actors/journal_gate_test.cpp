#include <troupe/actors/decisions/journal_gate.hpp>

#include <doctest/doctest.h>

#include <string>

using namespace troupe;
using namespace troupe::actors;

namespace {

control_state state_of(std::uint64_t generation, std::initializer_list<std::uint32_t> members) {
  control_state result;
  result.generation = {generation};
  for (auto worker : members)
    result.members.push_back({{worker_id{worker}, rank_id{worker}, 0, 0, 1}, step_id{}, 0});
  return result;
}

run_actions warning(std::string why) {
  return {{warn{}, std::move(why)}};
}

run_actions command(std::string why) {
  return {{send_command{}, std::move(why)}};
}

/// The reasons of all that can be carried out now.
std::string carried_out(journal_gate& gate) {
  std::string result;
  while (auto actions = gate.next())
    for (const auto& each : *actions)
      result += (result.empty() ? "" : ", ") + each.why;
  return result;
}

} // namespace

TEST_CASE("what workers hear of waits until the journal says it") {
  journal_gate gate;
  gate.add(command("a"), state_of(1, {0, 1}));
  CHECK(carried_out(gate).empty());
  CHECK(gate.begin_write() == state_of(1, {0, 1}));
  CHECK_FALSE(gate.begin_write());
  CHECK(carried_out(gate).empty());
  gate.on_written();
  CHECK(carried_out(gate) == "a");
  CHECK_FALSE(gate.begin_write());
  gate.add(command("b"), std::nullopt);
  CHECK(carried_out(gate) == "b");
}

TEST_CASE("it is known when the journal says what was decided") {
  journal_gate gate;
  CHECK(gate.is_kept(gate.latest_number()));
  gate.add({}, state_of(1, {0}));
  const auto first = gate.latest_number();
  CHECK_FALSE(gate.is_kept(first));
  REQUIRE(gate.begin_write());
  gate.add({}, state_of(2, {0}));
  CHECK(gate.latest() == state_of(2, {0}));
  gate.on_written();
  CHECK(gate.is_kept(first));
  CHECK_FALSE(gate.is_kept(gate.latest_number()));
  gate.on_late();
  CHECK(gate.is_kept(gate.latest_number()));
}

TEST_CASE("what has no consequences for another driver waits only for what was decided before") {
  journal_gate gate;
  gate.add(warning("a"), state_of(1, {0}));
  CHECK(carried_out(gate) == "a");
  gate.add(command("b"), state_of(2, {0}));
  gate.add(warning("c"), std::nullopt);
  CHECK(carried_out(gate).empty());
  REQUIRE(gate.begin_write());
  gate.on_written();
  CHECK(carried_out(gate) == "b, c");
}

TEST_CASE("a state that changes while it is written is written again, and its actions wait for that") {
  journal_gate gate;
  gate.add(command("a"), state_of(1, {0, 1}));
  REQUIRE(gate.begin_write());
  gate.add(command("b"), state_of(2, {0, 1}));
  gate.on_written();
  CHECK(carried_out(gate) == "a");
  CHECK(gate.begin_write() == state_of(2, {0, 1}));
  gate.on_written();
  CHECK(carried_out(gate) == "b");
}

TEST_CASE("a generation need not wait if the journal said before it was formed that it would be of these members") {
  journal_gate gate;
  auto expected = state_of(2, {2, 0});
  expected.members[0].came_after.reset();
  gate.add(warning("a loss"), expected);
  REQUIRE(gate.begin_write());
  gate.add({{form_generation{}, "formed"}}, state_of(2, {0, 2}));
  CHECK(carried_out(gate) == "a loss");
  gate.on_written();
  CHECK(carried_out(gate) == "formed");
  // It is written nevertheless.
  CHECK(gate.begin_write() == state_of(2, {0, 2}));
  gate.on_written();
  gate.add({{form_generation{}, "of fewer"}}, state_of(2, {0}));
  CHECK(carried_out(gate).empty());
}

TEST_CASE("the end of a run waits for nothing") {
  journal_gate gate;
  gate.add(command("a"), state_of(1, {0}));
  gate.add({{send_command{}, "b"}, {conclude{}, "over"}}, state_of(2, {0}));
  CHECK(carried_out(gate) == "b, over");
}

TEST_CASE("nobody waits for a disk that fails, or takes too long") {
  journal_gate gate;
  gate.add(command("a"), state_of(1, {0}));
  REQUIRE(gate.begin_write());
  gate.on_written();
  CHECK(carried_out(gate) == "a");
  gate.add(command("b"), state_of(2, {0}));
  REQUIRE(gate.begin_write());
  gate.on_late();
  CHECK(carried_out(gate) == "b");
  gate.add(command("c"), state_of(3, {0}));
  CHECK(carried_out(gate) == "c");
  gate.on_written();
  // From here on the journal is kept again.
  gate.add(command("d"), state_of(4, {0}));
  CHECK(carried_out(gate).empty());
}

TEST_CASE("a state is covered by one that says the same of what others have heard") {
  const auto state = state_of(2, {0, 1});
  CHECK(covers(state, state));
  CHECK(covers(state, state_of(2, {1, 0})));
  CHECK_FALSE(covers(state, state_of(2, {1})));
  CHECK_FALSE(covers(state, state_of(2, {0, 1, 2})));
  CHECK_FALSE(covers(state, state_of(3, {0, 1})));
  auto other = state;
  other.commands = 1;
  CHECK_FALSE(covers(other, state));
  other = state;
  other.asked = run_course::request::stop;
  CHECK_FALSE(covers(other, state));
  other = state;
  other.plans.emplace_back();
  CHECK_FALSE(covers(other, state));
  other = state;
  other.attempt = 2;
  CHECK_FALSE(covers(other, state));
  other = state;
  other.workers = 9;
  CHECK_FALSE(covers(other, state));
}
