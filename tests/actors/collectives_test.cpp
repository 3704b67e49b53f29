#include "actor_fixture.hpp"

#include <troupe/actors/collectives.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

const auto run = run_id{"run"};

exchange_request from(std::uint32_t rank, std::uint64_t generation = 1) {
  return {run, {generation}, 0, {rank}, "blob " + std::to_string(rank)};
}

/// A collectives actor, and several ranks that wait for it at once.
class ranks : public actor_fixture {
 public:
  ranks() : actor(spawn_collectives(system())) {}
  ~ranks() { caf::anon_send_exit(actor, caf::exit_reason::user_shutdown); }

  auto send(const exchange_request& message) { return self()->request(actor, patience, message); }

  template <class Pending>
  expected<exchange_result> answer(Pending& pending) {
    expected<exchange_result> result = fail(errc::internal, "no answer");
    pending.receive([&](exchange_result& x) { result = std::move(x); },
                    [&](const caf::error& reason) { result = fail(from_caf(reason)); });
    return result;
  }

  collectives_actor actor;
};

} // namespace

TEST_CASE_FIXTURE(ranks, "all ranks have the same answer once the last has spoken, however often they ask") {
  REQUIRE(ask<void>(actor, generation_started{run, {1}, 3}));
  auto zero = send(from(0));
  auto again = send(from(0));
  auto two = send(from(2));
  auto one = send(from(1));
  auto expected_result = exchange_result{{1}, {"blob 0", "blob 1", "blob 2"}};
  CHECK(answer(zero).value() == expected_result);
  CHECK(answer(again).value() == expected_result);
  CHECK(answer(one).value() == expected_result);
  CHECK(answer(two).value() == expected_result);
  CHECK(ask<exchange_result>(actor, from(0)).value() == expected_result);
}

TEST_CASE_FIXTURE(ranks, "a new generation fails what the old one waits for, the same one again does not") {
  REQUIRE(ask<void>(actor, generation_started{run, {1}, 2}));
  auto zero = send(from(0));
  REQUIRE(ask<void>(actor, generation_started{run, {1}, 2}));
  auto one = send(from(1));
  CHECK(answer(zero));
  CHECK(answer(one));
  auto next = from(0);
  next.sequence = 1;
  auto late = send(next);
  REQUIRE(ask<void>(actor, generation_started{run, {2}, 1}));
  CHECK(answer(late).error().code == errc::stale_generation);
  REQUIRE(ask<void>(actor, generation_started{run, {1}, 2}));
  CHECK(ask<exchange_result>(actor, from(0, 2)));
  CHECK(ask<exchange_result>(actor, from(0)).error().code == errc::stale_generation);
}

TEST_CASE_FIXTURE(ranks, "nobody waits for an actor that has ended") {
  REQUIRE(ask<void>(actor, generation_started{run, {1}, 2}));
  auto zero = send(from(0));
  caf::anon_send_exit(actor, caf::exit_reason::user_shutdown);
  CHECK(answer(zero).error().code == errc::aborted);
  CHECK(ask<exchange_result>(actor, from(1)).error().code == errc::unreachable);
}

TEST_CASE_FIXTURE(ranks, "an exchange that is given up fails for ranks that wait, and for ranks that come later") {
  REQUIRE(ask<void>(actor, generation_started{run, {1}, 2}));
  auto first = from(0);
  first.sequence = 7;
  first.group_size = 3;
  auto waits = send(first);
  REQUIRE(ask<void>(actor, exchange_ended{run, {1}, 7}));
  CHECK(answer(waits).error().code == errc::aborted);
  first.rank = {1};
  CHECK(ask<exchange_result>(actor, first).error().code == errc::aborted);
}

TEST_CASE_FIXTURE(
    ranks, "of workers that hang, the second gets a permit when the first is gone, and learns that it is the last") {
  REQUIRE(ask<void>(actor, generation_started{run, {1}, 2}));
  const auto first = ask<exit_granted>(actor, exit_request{run, {1}, {0}, "NCCL hangs"});
  REQUIRE(first);
  CHECK_FALSE(first->is_last_holder);
  auto asked = self()->request(actor, patience, exit_request{run, {1}, {1}, "NCCL hangs"});
  REQUIRE(ask<void>(actor, worker_gone{run, {0}, 1}));
  expected<exit_granted> second = fail(errc::internal, "no answer");
  asked.receive([&](exit_granted& x) { second = x; },
                [&](const caf::error& reason) { second = fail(from_caf(reason)); });
  REQUIRE(second);
  CHECK(second->is_last_holder);
}

TEST_CASE_FIXTURE(ranks, "a withdrawn permit goes to the next, and a new generation ends all requests") {
  REQUIRE(ask<void>(actor, generation_started{run, {1}, 3}));
  REQUIRE(ask<exit_granted>(actor, exit_request{run, {1}, {0}, "NCCL hangs"}));
  const auto answer_of = [](auto& asked) {
    expected<exit_granted> result = fail(errc::internal, "no answer");
    asked.receive([&](exit_granted& x) { result = x; },
                  [&](const caf::error& reason) { result = fail(from_caf(reason)); });
    return result;
  };
  auto second = self()->request(actor, patience, exit_request{run, {1}, {1}, "NCCL hangs"});
  auto third = self()->request(actor, patience, exit_request{run, {1}, {2}, "NCCL hangs"});
  REQUIRE(ask<void>(actor, exit_withdrawn{run, {1}}));
  CHECK(answer_of(second).error().code == errc::aborted);
  REQUIRE(ask<void>(actor, exit_withdrawn{run, {0}}));
  CHECK(answer_of(third));
  auto fourth = self()->request(actor, patience, exit_request{run, {1}, {1}, "NCCL hangs"});
  REQUIRE(ask<void>(actor, generation_started{run, {2}, 2}));
  CHECK(answer_of(fourth).error().code == errc::stale_generation);
  CHECK(ask<exit_granted>(actor, exit_request{run, {2}, {0}, "NCCL hangs"}));
}
