#include <troupe/actors/decisions/attempt_state.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

using attempt_phase::regrouping;

TEST_CASE("a regroup is asked for once in a generation, and its cause and checkpoint are kept until the next") {
  attempt_state state;
  CHECK(state.is<attempt_phase::starting>());
  CHECK_FALSE(state.ask_for_regroup("nobody trains"));
  state.begin_training();
  CHECK_FALSE(state.cause());
  CHECK(state.ask_for_regroup("the run is paused"));
  CHECK_FALSE(state.ask_for_regroup("another reason"));
  state.require_checkpoint(7);
  state.begin_regrouping(*state.cause());
  CHECK(state.cause() == "the run is paused");
  CHECK(state.checkpoint() == 7);
  state.begin_training();
  CHECK_FALSE(state.checkpoint());
}

TEST_CASE("a generation is aborted once, held once, and opened by the end of a pause") {
  attempt_state state;
  state.begin_training();
  CHECK_FALSE(state.is_held());
  state.begin_regrouping("a loss");
  CHECK(state.abort_group());
  CHECK_FALSE(state.abort_group());
  CHECK(state.hold());
  CHECK_FALSE(state.hold());
  CHECK(state.is_held());
  state.resume("the run was paused");
  CHECK_FALSE(state.is_held());
  CHECK(state.cause() == "the run was paused");
}

TEST_CASE("the wait for followers begins with the first tick, and ends with the generation") {
  attempt_state state;
  state.begin_training();
  state.begin_regrouping("a joiner");
  const auto start = run_time{} + 1h;
  CHECK_FALSE(state.waiting_since(start));
  state.wait_for_followers();
  CHECK(state.waiting_since(start) == start);
  state.wait_for_followers();
  CHECK(state.waiting_since(start + 1s) == start);
  state.end_with(attempt_phase::lost{"nobody has the state"});
  CHECK_FALSE(state.waiting_since(start + 1s));
  CHECK_FALSE(state.cause());
}
