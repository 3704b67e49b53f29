#include <troupe/actors/decisions/checkpoint_decision.hpp>

#include <doctest/doctest.h>

#include <initializer_list>
#include <optional>

namespace troupe::actors {

namespace {

using decision = checkpoint_decision;

using due = checkpoint_due;

/// Calls `check` with every boundary that there is.
template <class Check>
void for_each_boundary(Check check) {
  for (auto when : {due::no, due::may_be_skipped, due::in_this_step})
    for (unsigned bits = 0; bits < 4; ++bits)
      for (std::uint64_t most : {0u, 1u, 2u}) {
        auto at = checkpoint_boundary{when, (bits & 1) != 0, (bits & 2) != 0, std::nullopt, most};
        check(at);
        for (unsigned words = 0; words < 4; ++words)
          for (std::uint64_t in_flight : {0u, 1u, 2u, 3u}) {
            at.agreed = agreed_checkpoints{in_flight, (words & 1) != 0, (words & 2) != 0};
            check(at);
          }
      }
}

} // namespace

TEST_CASE("the last checkpoint is always taken, and waited for") {
  auto agreement = checkpoint_agreement{0, 1};
  const auto last = consider_checkpoint{.is_last = true};
  CHECK(agreement.decide({7}, last, {1}) == decision::take_and_wait);
  agreement.on_barrier({1}, 3, true);
  CHECK(agreement.decide({7}, last, {1}) == decision::take_and_wait);
  CHECK(agreement.decide({7}, last, {2}) == decision::take_and_wait);
  CHECK(agreement.decide({7}, {.is_last = true, .regroups = true}, {1}) == decision::take_and_wait);
}

TEST_CASE("the words of a barrier count in its generation only") {
  auto agreement = checkpoint_agreement{2, 1};
  CHECK(agreement.decide({2}, {}, {1}) == decision::postpone);
  agreement.on_barrier({1}, 0, false);
  CHECK(agreement.decide({2}, {}, {1}) == decision::take);
  CHECK(agreement.decide({3}, {}, {1}) == decision::none);
  CHECK(agreement.decide({4}, {}, {2}) == decision::postpone);
  agreement.on_barrier({2}, 0, true);
  CHECK(agreement.decide({5}, {}, {2}) == decision::take);
}

TEST_CASE("nothing is taken that is neither due nor asked for nor owed") {
  for_each_boundary([](checkpoint_boundary at) {
    at.due = due::no;
    at.asked = false;
    if (at.agreed) {
      at.agreed->owed = false;
      at.agreed->retrying = false;
    }
    CHECK(decide_checkpoint(at) == decision::none);
  });
}

TEST_CASE("only what is due by the number of steps is ever skipped, and only while as many as may be are in flight") {
  for_each_boundary([](const checkpoint_boundary& at) {
    if (decide_checkpoint(at) != decision::skip)
      return;
    CHECK(at.due == due::may_be_skipped);
    CHECK_FALSE(at.asked);
    REQUIRE(at.agreed);
    CHECK_FALSE(at.agreed->owed);
    CHECK(at.max_in_flight > 0);
    CHECK(at.agreed->in_flight >= at.max_in_flight);
  });
  const auto one = agreed_checkpoints{.in_flight = 1};
  CHECK(decide_checkpoint({.due = due::may_be_skipped, .agreed = one, .max_in_flight = 1}) == decision::skip);
  CHECK(decide_checkpoint({.due = due::may_be_skipped, .agreed = one, .max_in_flight = 2}) == decision::take);
}

TEST_CASE("what may be the best is taken in its own step, and never skipped") {
  const auto one = agreed_checkpoints{.in_flight = 1};
  CHECK(decide_checkpoint({.due = due::in_this_step, .agreed = one, .max_in_flight = 1}) == decision::wait_and_take);
  CHECK(decide_checkpoint({.due = due::in_this_step, .agreed = one, .max_in_flight = 2}) == decision::take);
  for_each_boundary([](checkpoint_boundary at) {
    const auto otherwise = decide_checkpoint(at);
    if (at.due == due::no)
      return;
    at.due = due::in_this_step;
    const auto what = decide_checkpoint(at);
    CHECK(what != decision::skip);
    if (otherwise != decision::skip && otherwise != decision::postpone)
      CHECK(what == otherwise);
  });
}

TEST_CASE("what is owed is taken at the first boundary where that is possible, whatever the number of steps") {
  const auto owed = agreed_checkpoints{.owed = true};
  CHECK(decide_checkpoint({.agreed = owed}) == decision::take);
  CHECK(decide_checkpoint({.agreed = agreed_checkpoints{.in_flight = 1, .owed = true}}) == decision::postpone);
  CHECK(decide_checkpoint({.regroups = true, .agreed = owed}) == decision::postpone);
  for_each_boundary([](checkpoint_boundary at) {
    if (!at.agreed)
      return;
    at.agreed->owed = true;
    auto what = decide_checkpoint(at);
    CHECK(what != decision::none);
    CHECK(what != decision::skip);
  });
}

TEST_CASE("what somebody asks for is durable before the group goes, and otherwise does not stop training") {
  const auto none = agreed_checkpoints{};
  CHECK(decide_checkpoint({.asked = true, .agreed = none}) == decision::take);
  CHECK(decide_checkpoint({.asked = true, .agreed = agreed_checkpoints{.in_flight = 1}}) == decision::postpone);
  CHECK(decide_checkpoint({.asked = true, .regroups = true, .agreed = none}) == decision::take_and_wait);
  CHECK(decide_checkpoint({.due = due::may_be_skipped, .regroups = true, .agreed = none}) == decision::postpone);
}

TEST_CASE("who did not leave the barrier with the others begins nothing that they do not come back to") {
  for_each_boundary([](checkpoint_boundary at) {
    at.agreed.reset();
    const auto is_wanted = at.due != due::no || at.asked;
    CHECK(decide_checkpoint(at) == (is_wanted ? decision::postpone : decision::none));
  });
}

TEST_CASE("who comes or goes by agreement does not overtake a checkpoint twice") {
  const auto again = agreed_checkpoints{.in_flight = 1, .retrying = true};
  CHECK(decide_checkpoint({.regroups = true, .agreed = again}) == decision::wait);
  CHECK(decide_checkpoint({.due = due::may_be_skipped, .regroups = true, .agreed = again}) == decision::wait);
  CHECK(decide_checkpoint({.regroups = true, .agreed = agreed_checkpoints{.in_flight = 1}}) == decision::none);
  CHECK(decide_checkpoint({.regroups = true, .agreed = agreed_checkpoints{.retrying = true}}) == decision::none);
  for_each_boundary([](const checkpoint_boundary& at) {
    if (decide_checkpoint(at) == decision::wait) {
      CHECK(at.regroups);
      REQUIRE(at.agreed);
      CHECK(at.agreed->retrying);
      CHECK(at.agreed->in_flight > 0);
    }
  });
}

TEST_CASE("with none in flight allowed, training waits for each") {
  CHECK(decide_checkpoint({.due = due::may_be_skipped, .agreed = agreed_checkpoints{}, .max_in_flight = 0}) ==
        decision::take_and_wait);
}

} // namespace troupe::actors
