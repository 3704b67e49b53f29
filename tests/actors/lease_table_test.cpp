#include <troupe/actors/decisions/lease_round.hpp>
#include <troupe/actors/decisions/lease_table.hpp>
#include <troupe/actors/decisions/placement.hpp>
#include <troupe/actors/decisions/resource_sums.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::actors;
using namespace std::chrono_literals;

namespace {

const auto start = lease_table::time{} + 1h;

lease_ticket ticket(std::uint64_t since, const std::string& run) {
  return {since, run_id{run}};
}

resources cpus(std::uint32_t count) {
  return {.cpus = count};
}

lease_request request(const lease_ticket& who, resources amount) {
  return {who, "run-" + who.run.value, std::move(amount)};
}

waiting_run waits(const lease_ticket& who, resources each) {
  return {who, "run-" + who.run.value, std::move(each)};
}

} // namespace

TEST_CASE("resources of every kind are added, compared and named") {
  const auto each = resources{2, 0.25, std::uint64_t{8} << 30, {{"licence", 1}}};
  const auto five = resources_of(each, 5);
  CHECK(five == resources{10, 2, std::uint64_t{40} << 30, {{"licence", 5}}});
  CHECK(is_within(each, five));
  CHECK_FALSE(is_within(five, each));
  CHECK_FALSE(is_within(resources{.custom = {{"tape", 1}}}, five));
  CHECK(difference(five, each).custom.at("licence") == 4);
  CHECK(difference(each, five) == resources{.custom = {{"licence", 0}}});
  CHECK(count_fitting(each, five) == 5);
  CHECK(count_fitting(each, {100, 100, std::uint64_t{100} << 30, {}}) == 0);
  CHECK(describe(five) == "10 CPUs, 2 GPUs, 40 GiB of memory and 5 licence");
  CHECK(describe(cpus(1)) == "1 CPU");
  CHECK(describe({}) == "nothing");
  CHECK(describe_kinds(cpus(3), each) == "3 CPUs, 0 GPUs, 0 MiB of memory and 0 licence");
}

TEST_CASE("absurd amounts add up to more than a node has, and not to less") {
  constexpr auto most = std::numeric_limits<std::uint64_t>::max();
  const auto absurd = resources{0x8000'0001, 0, most / 2 + 2, {{"licence", most}}};
  for (const auto& x : {resources_of(absurd, 2), sum(absurd, absurd)}) {
    CHECK(x.cpus == std::numeric_limits<std::uint32_t>::max());
    CHECK(x.memory_bytes == most);
    CHECK(x.custom.at("licence") == most);
  }
}

TEST_CASE("a lease keeps others out until its run ends, and names who has what") {
  lease_table table{cpus(8)};
  REQUIRE(table.lease(request(ticket(1, "a"), cpus(6)), start));
  table.open(run_id{"a"}, "run-a");
  CHECK(table.open_to(ticket(2, "b"), start) == cpus(2));
  CHECK(table.open_to(ticket(1, "a"), start) == cpus(8));
  const auto refused = table.lease(request(ticket(2, "b"), cpus(3)), start);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().code == errc::busy);
  CHECK(refused.error().message == "it is asked for 3 CPUs, and is busy: run run-a has 6 CPUs");
  CHECK(table.lease(request(ticket(2, "b"), cpus(9)), start).error().code == errc::unsatisfiable);
  CHECK(table.lease(request(ticket(2, "b"), cpus(2)), start));
  table.end(run_id{"a"});
  CHECK(table.lease(request(ticket(3, "c"), cpus(6)), start));
}

TEST_CASE("a lease that is asked for again replaces the first") {
  lease_table table{cpus(8)};
  REQUIRE(table.lease(request(ticket(1, "a"), cpus(6)), start));
  REQUIRE(table.lease(request(ticket(1, "a"), cpus(8)), start));
  REQUIRE(table.lease(request(ticket(1, "a"), cpus(3)), start));
  CHECK(table.open_to(ticket(2, "b"), start) == cpus(5));
}

TEST_CASE("an open run that gives its lease back can still take workers") {
  lease_table table{cpus(4)};
  CHECK(table.lease(request(ticket(1, "a"), cpus(4)), start));
  table.open(run_id{"a"}, "run-a");
  CHECK(table.lease(request(ticket(1, "a"), {}), start));
  CHECK(table.lease(request(ticket(2, "b"), cpus(3)), start));
  CHECK(table.use(run_id{"a"}, cpus(1), start));
  const auto refused = table.use(run_id{"a"}, cpus(2), start);
  REQUIRE(!refused);
  CHECK(refused.error().code == errc::busy);
}

TEST_CASE("a lease ends if its run is not opened in time") {
  lease_table table{cpus(4)};
  REQUIRE(table.lease(request(ticket(1, "a"), cpus(4)), start));
  CHECK_FALSE(table.lease(request(ticket(2, "b"), cpus(1)), start + lease_table::opening_patience - 1s));
  CHECK(table.lease(request(ticket(2, "b"), cpus(1)), start + lease_table::opening_patience));
}

TEST_CASE("workers beyond a run's lease add to it, and give that back when they end") {
  lease_table table{cpus(8)};
  REQUIRE(table.lease(request(ticket(1, "a"), cpus(2)), start));
  table.open(run_id{"a"}, "run-a");
  REQUIRE(table.use(run_id{"a"}, cpus(5), start));
  CHECK(table.open_to(ticket(2, "b"), start) == cpus(3));
  REQUIRE(table.lease(request(ticket(2, "b"), cpus(3)), start));
  CHECK(table.use(run_id{"a"}, cpus(6), start).error().code == errc::busy);
  CHECK(table.open_to(ticket(3, "c"), start) == cpus(0));
  REQUIRE(table.use(run_id{"a"}, cpus(0), start));
  CHECK(table.open_to(ticket(3, "c"), start) == cpus(3));
}

TEST_CASE("a run without a lease takes what is left, after all that wait") {
  lease_table table{cpus(4)};
  table.open(run_id{"a"}, "run-a");
  REQUIRE(table.use(run_id{"a"}, {}, start));
  table.wait(waits(ticket(9, "b"), cpus(1)), start);
  CHECK(table.use(run_id{"a"}, cpus(1), start).error().code == errc::busy);
  CHECK(table.use(run_id{"a"}, cpus(1), start + lease_table::queue_patience));
}

TEST_CASE("who waits longer goes first, for the kinds of resources that it needs") {
  lease_table table{resources{4, 2}};
  table.wait(waits(ticket(1, "a"), resources{.gpus = 1}), start);
  CHECK(table.open_to(ticket(2, "b"), start) == resources{4, 0});
  CHECK(table.open_to(ticket(0, "c"), start) == resources{4, 2});
  const auto refused = table.lease(request(ticket(2, "b"), resources{1, 1}), start);
  REQUIRE_FALSE(refused);
  CHECK(refused.error().message.find("run run-a has waited longer") != std::string::npos);
  CHECK(table.lease(request(ticket(2, "b"), cpus(1)), start));
  SUBCASE("until it is opened") {
    REQUIRE(table.lease(request(ticket(1, "a"), resources{.gpus = 1}), start));
    CHECK(table.open_to(ticket(2, "b"), start) == resources{4, 0});
    table.open(run_id{"a"}, "run-a");
    CHECK(table.open_to(ticket(2, "b"), start) == resources{4, 1});
  }
  SUBCASE("until it is not heard of any more") {
    CHECK(table.open_to(ticket(2, "b"), start + lease_table::queue_patience) == resources{4, 2});
  }
  SUBCASE("until it gives up") {
    table.end(run_id{"a"});
    CHECK(table.open_to(ticket(2, "b"), start) == resources{4, 2});
  }
}

TEST_CASE("all nodes grant a round, or the first refusal is its outcome") {
  auto round = lease_round{{{0, cpus(1)}, {3, cpus(2)}}};
  round.on_answer(3, {});
  CHECK_FALSE(round.is_over());
  SUBCASE("granted") {
    round.on_answer(0, {});
    CHECK(round.is_over());
    CHECK_FALSE(round.refusal());
  }
  SUBCASE("refused") {
    round.on_answer(0, fail(errc::busy, "no"));
    CHECK(round.is_over());
    CHECK(round.refusal()->code == errc::busy);
  }
}

namespace {

/// Several drivers that want leases on several nodes, with messages that take their time. Each placement is the
/// product's, over the offers that the driver has last got.
class market {
 public:
  enum class demand : std::uint8_t { random, everything };

  market(std::uint64_t seed, std::size_t nodes, std::size_t drivers, demand how = demand::random) : random_(seed) {
    for (std::size_t i = 0; i < nodes; ++i)
      nodes_.emplace_back(cpus(1 + random() % 4));
    for (const auto& node : nodes_)
      capacity_ += node.capacity().cpus;
    for (std::size_t i = 0; i < drivers; ++i) {
      driver next;
      next.ticket = ticket(i, std::to_string(i));
      next.wanted.num_workers =
          how == demand::everything ? capacity_ : static_cast<std::uint32_t>(1 + random() % capacity_);
      next.wanted.resources_per_worker = cpus(1);
      next.wanted.placement = random() % 2 == 0 ? placement_strategy::spread : placement_strategy::pack;
      drivers_.push_back(std::move(next));
    }
  }

  /// Returns whether all drivers have had their leases within so many turns.
  bool run(std::size_t turns) {
    for (; turns > 0 && served_.size() < drivers_.size(); --turns) {
      now_ += std::chrono::milliseconds{20 + random() % 100};
      take_turn(drivers_[random() % drivers_.size()]);
      check_capacity();
    }
    return served_.size() == drivers_.size();
  }

  void let_all_ask() {
    for (auto& each : drivers_)
      ask(each);
  }

  /// In the order in which they got all their leases.
  [[nodiscard]] const std::vector<lease_ticket>& served() const { return served_; }

 private:
  struct driver {
    lease_ticket ticket;
    scaling_config wanted;
    std::optional<lease_round> round;
    std::vector<std::uint32_t> unasked;
    /// Since it has its leases.
    std::optional<lease_table::time> since;
    bool is_done = false;
  };

  std::uint64_t random() { return random_(); }

  void take_turn(driver& who) {
    if (who.is_done)
      return;
    if (who.since)
      return end_if_due(who);
    if (!who.round)
      return ask(who);
    // One node answers.
    const auto chosen = random() % who.unasked.size();
    const auto node = who.unasked[chosen];
    who.unasked.erase(who.unasked.begin() + static_cast<std::ptrdiff_t>(chosen));
    who.round->on_answer(node, nodes_[node].lease(request(who.ticket, who.round->amounts().at(node)), now_));
    if (!who.round->is_over())
      return;
    if (who.round->refusal())
      for (const auto& [each, amount] : who.round->amounts())
        CHECK(nodes_[each].lease(request(who.ticket, {}), now_));
    else
      begin(who);
    who.round.reset();
  }

  void ask(driver& who) {
    std::vector<node_offer> offers;
    for (auto& node : nodes_) {
      node.wait(waits(who.ticket, cpus(1)), now_);
      offers.push_back({"host", "address", 1, node.open_to(who.ticket, now_), node.capacity()});
    }
    auto places = place_workers(who.wanted, offers);
    // As in the trainer, whose placement may share CPUs only if they are not leased.
    if (!places)
      return;
    who.round.emplace(amounts_on_nodes(cpus(1), places->places));
    for (const auto& [node, amount] : who.round->amounts())
      who.unasked.push_back(node);
  }

  void begin(driver& who) {
    who.since = now_;
    served_.push_back(who.ticket);
    for (auto& node : nodes_)
      node.open(who.ticket.run, "run");
  }

  void end_if_due(driver& who) {
    if (now_ - *who.since < 2s)
      return;
    who.is_done = true;
    for (auto& node : nodes_)
      node.end(who.ticket.run);
  }

  void check_capacity() {
    // Nobody but a holder could have anything if all together had more than there is.
    for (auto& node : nodes_)
      CHECK(is_within(node.open_to(lease_table::youngest(run_id{"nobody"}), now_), node.capacity()));
    auto held = std::uint32_t{0};
    for (const auto& each : drivers_)
      if (each.since && !each.is_done)
        held += each.wanted.num_workers.max;
    CHECK(held <= capacity_);
  }

  std::mt19937_64 random_;
  lease_table::time now_ = start;
  std::vector<lease_table> nodes_;
  std::uint32_t capacity_ = 0;
  std::vector<driver> drivers_;
  std::vector<lease_ticket> served_;
};

} // namespace

TEST_CASE("drivers that together want more than there is never wait for each other: a hundred seeds") {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    auto all = market{seed, 2 + seed % 5, 2 + seed % 7};
    CHECK(all.run(20'000));
  }
}

TEST_CASE("runs that want everything get it in the order in which they came") {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    CAPTURE(seed);
    auto all = market{seed, 1 + seed % 4, 6, market::demand::everything};
    all.let_all_ask();
    REQUIRE(all.run(20'000));
    CHECK(std::ranges::is_sorted(all.served()));
  }
}
