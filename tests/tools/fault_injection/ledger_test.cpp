#include <ledger.hpp>

#include <scratch_directory.hpp>

#include <doctest/doctest.h>

#include <fstream>

using namespace troupe::chaos;

namespace {

constexpr std::uint32_t shards = 8;

/// Steps 1 to `last` by two processes with four shards each, in generation 1.
std::vector<ledger_entry> two_processes(std::uint64_t last) {
  std::vector<ledger_entry> result;
  for (std::uint64_t step = 1; step <= last; ++step) {
    result.push_back({step, 1, 10, 0, 4});
    result.push_back({step, 1, 20, 4, 8});
  }
  return result;
}

void forget(std::vector<ledger_entry>& entries, std::uint64_t step, std::uint32_t pid) {
  std::erase_if(entries, [=](const ledger_entry& each) { return each.step == step && each.pid == pid; });
}

} // namespace

TEST_CASE("a complete ledger has no problems") {
  auto checked = account(two_processes(5), shards, 5, {});
  CHECK(checked.problems.empty());
  CHECK(checked.pairs == 40);
  CHECK(checked.died_with_writer == 0);
}

TEST_CASE("a shard that no process computed is found, and so is a step without any line") {
  auto entries = two_processes(5);
  forget(entries, 3, 20);
  auto checked = account(entries, shards, 5, {});
  REQUIRE(checked.problems.size() == 4);
  CHECK(checked.problems[0] == "step 3, shard 4, generation 1: not computed");
  CHECK(account(two_processes(5), shards, 6, {{10, {5}}, {20, {5}}}).problems.size() == 8);
}

TEST_CASE("a shard that two processes computed is found, and so is a process that applies a step twice") {
  auto entries = two_processes(5);
  entries.push_back({2, 1, 30, 3, 4});
  auto checked = account(entries, shards, 5, {});
  REQUIRE(checked.problems.size() == 1);
  CHECK(checked.problems[0] == "step 2, shard 3, generation 1: computed 2 times");

  entries = two_processes(5);
  entries.push_back({2, 2, 10, 0, 8});
  checked = account(entries, shards, 5, {});
  REQUIRE(!checked.problems.empty());
  CHECK(checked.problems[0] == "step 2, process 10: applied twice");
}

TEST_CASE("a killed process may lack its last lines, but no earlier ones") {
  auto entries = two_processes(3);
  forget(entries, 3, 20);
  for (std::uint64_t step = 4; step <= 6; ++step)
    entries.push_back({step, 2, 10, 0, 8});
  auto checked = account(entries, shards, 6, {{20, {3}}});
  CHECK(checked.problems.empty());
  CHECK(checked.died_with_writer == 4);
  // A line in the middle was not in flight.
  entries = two_processes(6);
  forget(entries, 3, 20);
  CHECK(account(entries, shards, 6, {{20, {6}}}).problems.size() == 4);
}

TEST_CASE("the generation that computed a step last has committed it") {
  // Only process 20 has applied step 3 and reported it, and the others compute it again.
  auto entries = two_processes(3);
  forget(entries, 3, 10);
  for (std::uint64_t step = 3; step <= 6; ++step)
    entries.push_back({step, 2, 10, 0, 8});
  CHECK(account(entries, shards, 6, {{20, {3}}}).problems.empty());
}

TEST_CASE("shards without a line are attributed to a process that was killed at the begin of their generation") {
  auto entries = two_processes(3);
  entries.push_back({4, 2, 10, 0, 4});
  for (std::uint64_t step = 5; step <= 6; ++step)
    entries.push_back({step, 3, 10, 0, 8});
  auto checked = account(entries, shards, 6, {{20, {3}}});
  CHECK(checked.problems.empty());
  CHECK(checked.died_with_writer == 4);
  // A process that was hit long before cannot be the owner.
  for (auto& entry : entries)
    entry.step += 5000;
  auto late = account(entries, shards, 5006, {{20, {3}}});
  CHECK(!late.problems.empty());
}

TEST_CASE("a process that was killed while lines waited may lack any number of them") {
  // Process 20 trains on without the driver, and is killed before it has sent a line of generation 2.
  auto entries = two_processes(3);
  for (std::uint64_t step = 4; step <= 900; ++step)
    entries.push_back({step, 2, 10, 0, 4});
  entries.push_back({901, 3, 10, 0, 8});
  CHECK(!account(entries, shards, 901, {{20, {3}}}).problems.empty());
  const auto checked = account(entries, shards, 901, {{20, {3, true}}});
  CHECK(checked.problems.empty());
  CHECK(checked.died_with_writer == 897 * 4);
}

TEST_CASE("an old generation that commits a step after a new one is found") {
  auto entries = two_processes(3);
  for (auto& entry : entries)
    entry.generation = entry.step == 2 ? 5 : 4;
  auto checked = account(entries, shards, 3, {});
  REQUIRE(checked.problems.size() == 1);
  CHECK(checked.problems[0] == "step 3 was committed by generation 4, after generation 5 had begun");
}

TEST_CASE("a process that changes its shards within a generation is found") {
  auto entries = two_processes(2);
  entries.push_back({3, 1, 10, 0, 3});
  entries.push_back({3, 1, 20, 3, 8});
  CHECK(account(entries, shards, 3, {}).problems.size() == 2);
}

TEST_CASE("a joiner without shards does not count") {
  auto entries = two_processes(3);
  entries.push_back({2, 2, 30, 0, 0});
  CHECK(account(entries, shards, 3, {}).problems.empty());
}

TEST_CASE("epochs that cross batches have every sample once") {
  for (auto [samples, batch] : {std::pair{100u, 32u}, {97u, 10u}, {10u, 64u}, {64u, 64u}}) {
    auto order = troupe::data_order{samples, batch, shards, 3};
    auto checked = account_samples(order, samples, shards, 50, {});
    CHECK(checked.problems.empty());
    CHECK(checked.whole_epochs == 50u * batch / samples);
  }
}

TEST_CASE("samples that occur twice are found") {
  // An order over fewer samples starts its second epoch too early.
  auto order = troupe::data_order{90, 10, shards, 3};
  CHECK(!account_samples(order, 100, shards, 50, {}).problems.empty());
  CHECK(account_samples(order, 100, shards, 9, {}).problems.empty());
  CHECK(!account_samples(troupe::data_order{100, 10, shards, 3}, 90, shards, 50, {}).problems.empty());
}

TEST_CASE("a ledger is read while it is written, line by complete line, and again after it was truncated") {
  troupe::testing::scratch_directory here;
  auto path = here.path() / "ledger.jsonl";
  auto tail = ledger_tail{here.path()};
  CHECK(tail.read().empty());
  auto out = std::ofstream{path};
  out << R"({"step":1,"generation":1,"rank":0,"pid":10,"first_shard":0,"last_shard":8,"samples_digest":18446744073709551615})"
      << "\n"
      << R"({"step":2,)";
  out.flush();
  CHECK(tail.read() == std::vector<ledger_entry>{{1, 1, 10, 0, 8, ~std::uint64_t{0}}});
  CHECK(tail.read().empty());
  out << R"("generation":1,"rank":0,"pid":10,"first_shard":0,"last_shard":8,"samples_digest":18446744073709551615})"
      << "\nnot a line\n";
  out.flush();
  CHECK(tail.read() == std::vector<ledger_entry>{{2, 1, 10, 0, 8, ~std::uint64_t{0}}});
  out.close();
  out.open(path, std::ios::trunc);
  out << R"({"step":1,"generation":2,"rank":0,"pid":11,"first_shard":0,"last_shard":8,"samples_digest":18446744073709551615})"
      << "\n";
  out.flush();
  CHECK(tail.read() == std::vector<ledger_entry>{{1, 2, 11, 0, 8, ~std::uint64_t{0}}});
}

TEST_CASE(
    "generations go on counting over the processes of a run, each of which begins after a step of the one before") {
  troupe::testing::scratch_directory here;
  const auto line = [](std::uint64_t step, int generation) {
    return R"({"step":)" + std::to_string(step) + R"(,"generation":)" + std::to_string(generation) +
           R"(,"rank":0,"pid":10,"first_shard":0,"last_shard":8,"samples_digest":1})" + "\n";
  };
  const auto path = here.path() / "ledger.jsonl";
  const auto generations = [&](ledger_tail& tail) {
    std::vector<std::uint64_t> result;
    for (const auto& each : tail.read())
      result.push_back(each.generation);
    return result;
  };
  auto events = std::ofstream{here.path() / "events.jsonl"};
  events << R"({"event":"started","resumed_from_step":0})"
         << "\n"
         << std::flush;
  std::ofstream{path} << line(1, 1) << line(2, 3) << line(3, 3);
  auto tail = ledger_tail{here.path()};
  CHECK(generations(tail) == std::vector<std::uint64_t>{1, 3, 3});
  // The run begins anew after step 2: the file is another one, as long as the one before.
  std::ofstream{here.path() / "new"} << line(1, 1) << line(2, 3);
  std::filesystem::rename(here.path() / "new", path);
  CHECK(generations(tail) == std::vector<std::uint64_t>{1, 3});
  events << R"({"event":"started","resumed_from_step":2})"
         << "\n"
         << std::flush;
  std::ofstream{path, std::ios::app} << line(3, 1) << line(4, 2);
  CHECK(generations(tail) == std::vector<std::uint64_t>{1'000'001, 1'000'002});
  auto again = ledger_tail{here.path()};
  CHECK(generations(again) == std::vector<std::uint64_t>{1, 3, 1'000'001, 1'000'002});
}
