#include <troupe/actors/decisions/exchange_table.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

const auto run = run_id{"run"};

exchange_request from(std::uint32_t rank, std::uint64_t sequence = 0, std::uint64_t generation = 1) {
  return {run, {generation}, sequence, {rank}, "blob " + std::to_string(rank) + " of " + std::to_string(sequence)};
}

exchange_table table_of(std::uint32_t world_size) {
  exchange_table result;
  REQUIRE(result.begin({run, {1}, world_size}));
  return result;
}

} // namespace

TEST_CASE("the last of the ranks completes an exchange, whatever the order") {
  auto table = table_of(3);
  CHECK_FALSE(table.add(from(2)).value());
  CHECK_FALSE(table.add(from(0)).value());
  auto whole = table.add(from(1)).value();
  REQUIRE(whole);
  CHECK(whole->generation == generation_id{1});
  CHECK(whole->blobs == std::vector<std::string>{"blob 0 of 0", "blob 1 of 0", "blob 2 of 0"});
}

TEST_CASE("a lonely rank has its answer at once") {
  CHECK(table_of(1).add(from(0)).value().has_value());
}

TEST_CASE("exchanges of different numbers do not mix") {
  auto table = table_of(2);
  CHECK_FALSE(table.add(from(0, 0)).value());
  CHECK_FALSE(table.add(from(0, 1)).value());
  CHECK(table.add(from(1, 1)).value()->blobs.front() == "blob 0 of 1");
  CHECK(table.add(from(1, 0)).value()->blobs.front() == "blob 0 of 0");
}

TEST_CASE("repeating a contribution is harmless, before and after the end; changing it is an error") {
  auto table = table_of(2);
  CHECK_FALSE(table.add(from(0)).value());
  CHECK_FALSE(table.add(from(0)).value());
  CHECK(table.add(from(1)).value());
  CHECK(table.add(from(0)).value()->blobs.size() == 2);
  auto changed = from(0);
  changed.blob = "another";
  CHECK(table.add(changed).error().code == errc::invalid_argument);
}

TEST_CASE("strangers are turned away") {
  auto table = table_of(2);
  CHECK(table.add(from(2)).error().code == errc::invalid_argument);
  CHECK(table.add(from(0, 0, 2)).error().code == errc::stale_generation);
  CHECK(table.add(from(0, 0, 0)).error().code == errc::stale_generation);
  auto other = from(0);
  other.run = run_id{"other"};
  CHECK(table.add(other).error().code == errc::stale_generation);
  CHECK(exchange_table{}.add(from(0)).error().code == errc::stale_generation);
}

TEST_CASE("a new generation forgets what the old one had, and an old one does not come back") {
  auto table = table_of(2);
  CHECK_FALSE(table.add(from(0)).value());
  CHECK_FALSE(table.begin({run, {1}, 2}));
  CHECK(table.add(from(1)).value());
  REQUIRE(table.begin({run, {2}, 2}));
  CHECK_FALSE(table.begin({run, {1}, 2}));
  CHECK(table.generation() == generation_id{2});
  CHECK(table.add(from(1)).error().code == errc::stale_generation);
  CHECK_FALSE(table.add(from(1, 0, 2)).value());
  CHECK(table.add(from(0, 0, 2)).value());
}

TEST_CASE("an exchange of a staging group has a size of its own, and can be given up") {
  auto table = table_of(2);
  auto ask = [&](std::uint32_t rank, std::uint32_t group_size, std::uint64_t sequence = 5) {
    auto message = from(rank, sequence);
    message.group_size = group_size;
    return table.add(message);
  };
  CHECK_FALSE(ask(0, 3).value());
  CHECK_FALSE(ask(2, 3).value());
  CHECK(ask(1, 4).error().code == errc::invalid_argument);
  CHECK(ask(3, 3).error().code == errc::invalid_argument);
  const auto whole = ask(1, 3).value();
  REQUIRE(whole);
  CHECK(whole->blobs == std::vector<std::string>{"blob 0 of 5", "blob 1 of 5", "blob 2 of 5"});

  CHECK_FALSE(ask(0, 3, 6).value());
  CHECK_FALSE(table.end({run, {2}, 6}));
  CHECK(table.end({run, {1}, 6}));
  CHECK_FALSE(table.end({run, {1}, 6}));
  CHECK(ask(1, 3, 6).error().code == errc::aborted);
  // The generation's own goes on.
  CHECK_FALSE(ask(0, 0, 0).value());
  CHECK(ask(1, 0, 0).value());
}
