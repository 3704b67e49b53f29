#include "actor_fixture.hpp"

#include <troupe/actors/checkpoint_store.hpp>
#include <troupe/serialization/checkpoint/checkpoint.hpp>

#include <doctest/doctest.h>

#include <array>
#include <fstream>
#include <map>

using namespace troupe;
using namespace troupe::actors;
using serialization::scratch_directory;
namespace fs = std::filesystem;

namespace {

const auto run = run_id{"run"};

/// A store on a directory of its own, and two ranks that write.
class archive : public actor_fixture {
 public:
  archive() {
    store = spawn_checkpoint_store(
        system(),
        {run, directory(), {2, "loss", score_mode::min}, [this](const auto& outcome) { heard.add(outcome); }});
    REQUIRE(ask<void>(store, checkpoint_metadata{run, 17, 8, 64, 1, "c0ffee", "{}", "digits", "{}", {}}));
  }
  ~archive() {
    caf::anon_send_exit(store, caf::exit_reason::user_shutdown);
    has_ended(store);
  }

  [[nodiscard]] const fs::path& directory() const { return scratch_.path(); }

  /// Writes the part of one rank and says so.
  checkpoint_part write(std::uint32_t rank, step_id step, std::uint32_t attempt = 1, std::uint32_t world_size = 2) {
    checkpoint_part result;
    result.run = run;
    result.generation = {1};
    result.step = step;
    result.attempt = attempt;
    result.rank = {rank};
    result.world_size = world_size;
    result.tensors = state_.specs();
    result.values_json = "{}";
    auto written =
        serialization::write_part(directory() / serialization::temporary_name({run, step, {1}, attempt}), rank,
                                  serialization::plan_chunks(state_.specs(), world_size), state_.views());
    REQUIRE(written);
    result.report = *written;
    return result;
  }

  /// What both ranks are told.
  checkpoint_outcome deliver(const checkpoint_part& first, const checkpoint_part& second) {
    auto pending = self()->request(store, patience, first);
    auto answer = ask<checkpoint_outcome>(store, second);
    REQUIRE(answer);
    pending.receive([&](const checkpoint_outcome& other) { CHECK(other == *answer); },
                    [](const caf::error& reason) { FAIL_CHECK(to_string(reason)); });
    CHECK(heard.all().back() == *answer);
    return *answer;
  }

  [[nodiscard]] std::vector<std::uint64_t> steps() const {
    std::vector<std::uint64_t> result;
    auto entries = serialization::list_checkpoints(directory());
    REQUIRE(entries);
    for (const auto& entry : *entries)
      result.push_back(entry.step.value);
    return result;
  }

  serialization::sample_state& state() { return state_; }

  checkpoint_store store;
  record<checkpoint_outcome> heard;

 private:
  scratch_directory scratch_;
  serialization::sample_state state_{serialization::assorted_specs()};
};

using list = std::vector<std::uint64_t>;

} // namespace

TEST_CASE_FIXTURE(archive, "a checkpoint of two parts is durable when both ranks have their answer") {
  auto outcome = deliver(write(1, {5}), write(0, {5}));
  CHECK(outcome.reason == error{});
  CHECK(outcome.step.value == 5);
  CHECK(outcome.path == (directory() / "step-00000005").string());
  auto stored = serialization::checkpoint::open(outcome.path);
  REQUIRE(stored);
  CHECK(stored->verify());
  CHECK(stored->content().seed == 17);
  CHECK(serialization::state_sha256(*stored).value() == serialization::state_sha256(state().views(), "{}"));
}

TEST_CASE_FIXTURE(archive, "only the latest stay") {
  for (std::uint64_t step : {1u, 2u, 3u, 4u})
    CHECK(deliver(write(0, {step}), write(1, {step})).reason == error{});
  CHECK(steps() == list{3, 4});
}

TEST_CASE_FIXTURE(archive, "the best stays, too") {
  auto losses = std::map<std::uint64_t, double>{{1, 3}, {2, 0.5}, {3, 1}, {4, 2}, {5, 1}};
  for (auto [step, loss] : losses) {
    auto parts = std::array{write(0, {step}), write(1, {step})};
    for (auto& part : parts)
      part.metrics["loss"] = loss;
    CHECK(deliver(parts[0], parts[1]).reason == error{});
  }
  CHECK(steps() == list{2, 4, 5});
}

TEST_CASE_FIXTURE(archive, "a part that could not be written gives up the checkpoint, and the older ones stand") {
  CHECK(deliver(write(0, {1}), write(1, {1})).reason == error{});
  auto failed = write(0, {2});
  failed.reason = {errc::io_error, "no space"};
  auto outcome = deliver(failed, write(1, {2}));
  CHECK(outcome.reason == error{errc::io_error, "no space"});
  CHECK(outcome.path.empty());
  CHECK(steps() == list{1});
  CHECK_FALSE(fs::exists(directory() / serialization::temporary_name({run, {2}, {1}, 1})));
  CHECK(deliver(write(0, {3}), write(1, {3})).reason == error{});
}

TEST_CASE_FIXTURE(archive, "a part that is lost on the way gives up the checkpoint") {
  auto first = write(0, {2});
  auto second = write(1, {2});
  fs::remove(directory() / serialization::temporary_name({run, {2}, {1}, 1}) / "part-0000.bin");
  CHECK(deliver(first, second).reason.code == errc::damaged);
  CHECK(steps().empty());
}

TEST_CASE_FIXTURE(archive, "a step that has a checkpoint does not get another") {
  CHECK(deliver(write(0, {2}), write(1, {2})).reason == error{});
  CHECK(deliver(write(0, {2}, 2), write(1, {2}, 2)).reason.code == errc::already_exists);
  CHECK(steps() == list{2});
}

TEST_CASE_FIXTURE(archive, "nobody waits for a store that has ended") {
  auto pending = self()->request(store, patience, write(0, {2}));
  caf::anon_send_exit(store, caf::exit_reason::user_shutdown);
  pending.receive([](const checkpoint_outcome&) { FAIL_CHECK("there is one part of two"); },
                  [](const caf::error& reason) { CHECK(from_caf(reason).code == errc::aborted); });
}

TEST_CASE_FIXTURE(archive, "what a lost generation has written is removed, and what others are writing stays") {
  auto first = write(0, {2});
  auto pending = self()->request(store, patience, first);
  auto other = directory() / serialization::temporary_name({run, {3}, {2}, 1});
  fs::create_directory(other);
  const auto of_earlier_run = directory() / serialization::temporary_name({{"earlier"}, {3}, {2}, 1});
  fs::create_directory(of_earlier_run);
  REQUIRE(ask<void>(store, generation_started{run, {2}, 0}));
  pending.receive([](const checkpoint_outcome&) { FAIL_CHECK("there is one part of two"); },
                  [](const caf::error& reason) { CHECK(from_caf(reason).code == errc::stale_generation); });
  CHECK_FALSE(fs::exists(directory() / serialization::temporary_name({run, {2}, {1}, 1})));
  CHECK(fs::exists(other));
  CHECK_FALSE(fs::exists(of_earlier_run));
  // A part that comes too late.
  CHECK(ask<checkpoint_outcome>(store, first).error().code == errc::stale_generation);
}

TEST_CASE_FIXTURE(archive, "a checkpoint whose parts have all come is committed although a generation begins") {
  auto one = self()->request(store, patience, write(0, {2}));
  auto two = self()->request(store, patience, write(1, {2}));
  auto begun = self()->request(store, patience, generation_started{run, {2}, 0});
  for (auto* each : {&one, &two})
    each->receive([](const checkpoint_outcome& outcome) { CHECK(outcome.reason == error{}); },
                  [](const caf::error& reason) { FAIL_CHECK(to_string(reason)); });
  begun.receive([] {}, [](const caf::error& reason) { FAIL_CHECK(to_string(reason)); });
  CHECK(steps() == list{2});
}

TEST_CASE_FIXTURE(archive, "the last copy of a worker that has to end is taken although its generation is over") {
  caf::anon_send(store, generation_started{run, {2}});
  auto copy = write(0, {5}, serialization::first_last_copy + 1, 1);
  // Others are lost while it is written.
  caf::anon_send(store, generation_started{run, {3}});
  auto outcome = ask<checkpoint_outcome>(store, copy);
  REQUIRE(outcome);
  CHECK(outcome->reason == error{});
  CHECK(steps() == list{5});
  // What belongs to a generation that is over stays refused.
  CHECK_FALSE(ask<checkpoint_outcome>(store, write(0, {6})));
}

TEST_CASE_FIXTURE(archive, "a store that ends leaves checkpoints, and nothing else") {
  CHECK(deliver(write(0, {2}), write(1, {2})).reason == error{});
  auto unfinished = write(0, {3});
  REQUIRE(ask<storage_view>(store, storage_probe{run, {1}, ".probe-1", "nonce"}));
  caf::anon_send_exit(store, caf::exit_reason::user_shutdown);
  has_ended(store);
  for (const auto& entry : fs::directory_iterator{directory()})
    CHECK(entry.path().filename().string() == "step-00000002");
}

TEST_CASE_FIXTURE(archive, "store and worker see whether they look at the same directory") {
  std::ofstream{directory() / ".probe-1-a"} << "mine";
  auto view = ask<storage_view>(store, storage_probe{run, {1}, ".probe-1-a", "mine"});
  REQUIRE(view);
  CHECK(view->seen);
  CHECK_FALSE(view->nonce.empty());
  CHECK(serialization::read_file(directory() / view->file) == view->nonce);
  CHECK_FALSE(ask<storage_view>(store, storage_probe{run, {1}, ".probe-1-a", "other"})->seen);
  CHECK_FALSE(ask<storage_view>(store, storage_probe{run, {1}, ".probe-1-b", "mine"})->seen);
  CHECK_FALSE(
      ask<storage_view>(store, storage_probe{run, {1}, "../" + directory().filename().string() + "/.probe-1-a", "mine"})
          ->seen);
}

TEST_CASE_FIXTURE(archive, "a part of another run is turned away") {
  auto other = write(0, {2});
  other.run = run_id{"other"};
  CHECK(ask<checkpoint_outcome>(store, other).error().code == errc::stale_generation);
}
