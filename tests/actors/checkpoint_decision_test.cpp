#include <troupe/actors/decisions/checkpoint_decision.hpp>

#include <doctest/doctest.h>

#include <initializer_list>

namespace troupe::actors {

namespace {

using decision = checkpoint_decision;

/// Calls `check` with every boundary that there is.
template <class Check>
void for_each_boundary(Check check) {
  for (unsigned bits = 0; bits < 64; ++bits)
    for (std::uint64_t in_flight : {0u, 1u, 2u, 3u})
      for (std::uint64_t most : {0u, 1u, 2u})
        check(checkpoint_boundary{(bits & 1) != 0, (bits & 2) != 0, (bits & 4) != 0, (bits & 8) != 0, (bits & 16) != 0,
                                  (bits & 32) != 0, in_flight, most, false});
}

} // namespace

TEST_CASE("the last checkpoint is always taken, and waited for") {
  for_each_boundary([](checkpoint_boundary at) {
    at.last = true;
    CHECK(decide_checkpoint(at) == decision::take_and_wait);
  });
}

TEST_CASE("nothing is taken that is neither due nor asked for nor owed") {
  for_each_boundary([](checkpoint_boundary at) {
    at.last = at.due = at.asked = at.owed = false;
    CHECK(decide_checkpoint(at) == decision::none);
  });
}

TEST_CASE("only what is due by the number of steps is ever skipped, and only while as many as may be are in flight") {
  for_each_boundary([](const checkpoint_boundary& at) {
    if (decide_checkpoint(at) != decision::skip)
      return;
    CHECK(at.due);
    CHECK_FALSE(at.asked);
    CHECK_FALSE(at.owed);
    CHECK(at.max_in_flight > 0);
    CHECK(at.in_flight >= at.max_in_flight);
  });
  CHECK(decide_checkpoint({.due = true, .in_flight = 1, .max_in_flight = 1}) == decision::skip);
  CHECK(decide_checkpoint({.due = true, .in_flight = 1, .max_in_flight = 2}) == decision::take);
}

TEST_CASE("what may be the best is taken in its own step, and never skipped") {
  CHECK(decide_checkpoint({.due = true, .in_flight = 1, .max_in_flight = 1, .may_skip = false}) ==
        decision::wait_and_take);
  CHECK(decide_checkpoint({.due = true, .in_flight = 1, .max_in_flight = 2, .may_skip = false}) == decision::take);
  for_each_boundary([](checkpoint_boundary at) {
    const auto otherwise = decide_checkpoint(at);
    at.may_skip = false;
    const auto what = decide_checkpoint(at);
    CHECK(what != decision::skip);
    if (!at.due)
      CHECK(what == otherwise);
  });
}

TEST_CASE("what is owed is taken at the first boundary where that is possible, whatever the number of steps") {
  CHECK(decide_checkpoint({.owed = true}) == decision::take);
  CHECK(decide_checkpoint({.owed = true, .in_flight = 1}) == decision::postpone);
  CHECK(decide_checkpoint({.owed = true, .regroups = true}) == decision::postpone);
  CHECK(decide_checkpoint({.owed = true, .agreed = false}) == decision::postpone);
  for_each_boundary([](checkpoint_boundary at) {
    at.owed = true;
    auto what = decide_checkpoint(at);
    CHECK(what != decision::none);
    CHECK(what != decision::skip);
  });
}

TEST_CASE("what somebody asks for is durable before the group goes, and otherwise does not stop training") {
  CHECK(decide_checkpoint({.asked = true}) == decision::take);
  CHECK(decide_checkpoint({.asked = true, .in_flight = 1}) == decision::postpone);
  CHECK(decide_checkpoint({.asked = true, .regroups = true}) == decision::take_and_wait);
  CHECK(decide_checkpoint({.due = true, .regroups = true}) == decision::postpone);
}

TEST_CASE("who did not leave the barrier with the others begins nothing that they do not come back to") {
  for_each_boundary([](checkpoint_boundary at) {
    at.last = at.agreed = false;
    auto what = decide_checkpoint(at);
    CHECK((what == decision::none || what == decision::postpone));
  });
}

TEST_CASE("who comes or goes by agreement does not overtake a checkpoint twice") {
  CHECK(decide_checkpoint({.regroups = true, .in_flight = 1, .retrying = true}) == decision::wait);
  CHECK(decide_checkpoint({.due = true, .regroups = true, .in_flight = 1, .retrying = true}) == decision::wait);
  CHECK(decide_checkpoint({.regroups = true, .in_flight = 1}) == decision::none);
  CHECK(decide_checkpoint({.regroups = true, .retrying = true}) == decision::none);
  for_each_boundary([](checkpoint_boundary at) {
    at.retrying = true;
    if (decide_checkpoint(at) == decision::wait) {
      CHECK(at.regroups);
      CHECK(at.agreed);
      CHECK(at.in_flight > 0);
    }
  });
}

TEST_CASE("with none in flight allowed, training waits for each") {
  CHECK(decide_checkpoint({.due = true, .max_in_flight = 0}) == decision::take_and_wait);
}

} // namespace troupe::actors
