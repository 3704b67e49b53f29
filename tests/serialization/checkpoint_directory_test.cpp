#include <troupe/serialization/checkpoint/checkpoint.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>

#include "scratch.hpp"

#include <doctest/doctest.h>

#include <cmath>

using namespace troupe;
using namespace troupe::serialization;
namespace fs = std::filesystem;

namespace {

std::vector<std::uint64_t> steps_in(const fs::path& directory) {
  auto entries = list_checkpoints(directory);
  REQUIRE(entries);
  auto result = std::vector<std::uint64_t>{};
  for (const auto& entry : *entries)
    result.push_back(entry.step.value);
  return result;
}

void save_steps(const fs::path& directory, std::initializer_list<std::uint64_t> steps) {
  for (auto step : steps) {
    auto state = sample_state{assorted_specs(), step};
    REQUIRE(save(directory, state, sample_manifest({step}), 2));
  }
}

using steps = std::vector<std::uint64_t>;

} // namespace

TEST_CASE("an attempt's name is parsed, and no other name is") {
  for (const auto& which : {attempt_name{{"0f3a"}, {100}, {7}, 2}, attempt_name{{"r"}, {123'456'789'012}, {1}, 1},
                            attempt_name{{"g1"}, {1}, {1}, 1}, attempt_name{{}, {1}, {1}, 1}})
    CHECK(parse_temporary_name(temporary_name(which)) == which);
  for (const auto* name : {"", "notes", "step-00000100", ".step-1", ".step-00000001.rx.gx.a1.tmp",
                           ".step-1.rx.g1.a1.tmp", ".step-00000100.rx.g7.a2.tmp.tmp", ".step-00000050.removed",
                           ".step-00000100.g7.a2.tmp", ".step-00000100.rx/y.g7.a2.tmp"}) {
    CAPTURE(name);
    CHECK_FALSE(parse_temporary_name(name).has_value());
  }
  CHECK(is_removed_name(".step-00000050.removed"));
  CHECK_FALSE(is_removed_name(temporary_name({{"r"}, {50}, {1}, 1})));
  // Whatever an imported file says its run is, it names no other directory.
  CHECK(temporary_name({{"../a b"}, {1}, {1}, 1}) == ".step-00000001.rab.g1.a1.tmp");
}

TEST_CASE("names of checkpoints are parsed, other names are not") {
  CHECK(checkpoint_name({100}) == "step-00000100");
  CHECK(temporary_name({{"0f3a"}, {100}, {1}, 1}) == ".step-00000100.r0f3a.g1.a1.tmp");
  for (auto step : {std::uint64_t{0}, std::uint64_t{99'999'999}, std::uint64_t{100'000'000}, ~std::uint64_t{0}})
    CHECK(parse_checkpoint_name(checkpoint_name({step})) == step_id{step});
  for (auto name : {"", "step-", "step-1", "step-0000000x", "step-000000001", "step-00000001 ", ".step-00000001",
                    "step--0000001", "step-99999999999999999999"})
    CHECK_FALSE(parse_checkpoint_name(name));
}

TEST_CASE("checkpoints are listed by step, also beyond eight digits") {
  auto scratch = scratch_directory{};
  save_steps(scratch.path(), {100'000'000, 9, 100, 99'999'999});
  CHECK(steps_in(scratch.path()) == steps{9, 100, 99'999'999, 100'000'000});
}

TEST_CASE("a directory that does not exist holds no checkpoints") {
  auto scratch = scratch_directory{};
  CHECK(steps_in(scratch.path() / "absent").empty());
  CHECK(remove_abandoned(scratch.path() / "absent")->empty());
  CHECK(apply_retention(scratch.path() / "absent", 1)->empty());
}

TEST_CASE("a checkpoint is never overwritten") {
  auto scratch = scratch_directory{};
  save_steps(scratch.path(), {5});
  auto before = read_file(scratch.path() / "step-00000005" / "part-0000.bin");
  auto other = sample_state{assorted_specs(), 77};
  auto again = save(scratch.path(), other, sample_manifest({5}), 2);
  REQUIRE_FALSE(again);
  CHECK(again.error().code == errc::already_exists);
  CHECK(read_file(scratch.path() / "step-00000005" / "part-0000.bin") == before);
  // The attempt's files remain until they are removed as abandoned.
  CHECK(remove_abandoned(scratch.path())->size() == 1);
}

TEST_CASE("a commit with a missing or truncated part is refused") {
  auto scratch = scratch_directory{};
  auto temporary = scratch.path() / temporary_name({{"r"}, {1}, {1}, 1});
  auto state = sample_state{assorted_specs()};
  auto plan = plan_chunks(state.specs(), 1);
  auto report = write_part(temporary, 0, plan, state.views());
  REQUIRE(report);
  auto content = sample_manifest({1});
  REQUIRE(add_parts(content, state.specs(), plan, std::vector{*report}));
  auto refused = [&] {
    auto committed = commit_checkpoint(scratch.path(), temporary, content);
    return !committed && committed.error().code == errc::damaged &&
           committed.error().message.find("part-0000.bin") != std::string::npos && fs::exists(temporary) &&
           steps_in(scratch.path()).empty();
  };
  fs::resize_file(temporary / "part-0000.bin", report->size_bytes - 1);
  CHECK(refused());
  fs::remove(temporary / "part-0000.bin");
  CHECK(refused());
}

TEST_CASE("wherever a writer dies, the previous checkpoint is found and the rest is removed") {
  auto scratch = scratch_directory{};
  save_steps(scratch.path(), {10});
  auto state = sample_state{assorted_specs()};
  auto temporary = scratch.path() / temporary_name({{"r"}, {20}, {1}, 1});
  auto plan = plan_chunks(state.specs(), 2);
  auto still_ten = [&] {
    auto found = open_latest(scratch.path());
    return found && found->found.content().step == step_id{10} && found->passed_over.empty() &&
           steps_in(scratch.path()) == steps{10};
  };
  fs::create_directory(temporary);
  CHECK(still_ten());
  overwrite_file(temporary / part_file_name(0), "torn");
  CHECK(still_ten());
  fs::remove(temporary / part_file_name(0));
  auto reports =
      std::vector{*write_part(temporary, 0, plan, state.views()), *write_part(temporary, 1, plan, state.views())};
  CHECK(still_ten());
  auto content = sample_manifest({20});
  REQUIRE(add_parts(content, state.specs(), plan, reports));
  REQUIRE(write_manifest(temporary / manifest_file_name, content));
  CHECK(still_ten());
  CHECK(*remove_abandoned(scratch.path()) == std::vector{temporary});
  CHECK_FALSE(fs::exists(temporary));
  CHECK(still_ten());
}

TEST_CASE("cleaning up spares attempts in flight, checkpoints and foreign files") {
  auto scratch = scratch_directory{};
  save_steps(scratch.path(), {10});
  auto running = scratch.path() / temporary_name({{"r"}, {20}, {2}, 1});
  auto crashed = scratch.path() / temporary_name({{"r"}, {20}, {1}, 1});
  auto half_removed = scratch.path() / ".step-00000005.removed";
  auto foreign = scratch.path() / ".git";
  for (const auto& path : {running, crashed, half_removed, foreign})
    fs::create_directory(path);
  auto removed = remove_abandoned(scratch.path(), std::vector{running});
  REQUIRE(removed);
  CHECK(*removed == std::vector{half_removed, crashed});
  CHECK(fs::exists(running));
  CHECK(fs::exists(foreign));
  CHECK(steps_in(scratch.path()) == steps{10});
}

TEST_CASE("retention removes the oldest and keeps the configured number") {
  auto scratch = scratch_directory{};
  save_steps(scratch.path(), {1, 2, 3, 4, 5});
  auto removed = apply_retention(scratch.path(), 2);
  REQUIRE(removed);
  CHECK(removed->size() == 3);
  CHECK(removed->front().filename() == "step-00000001");
  CHECK(steps_in(scratch.path()) == steps{4, 5});
  CHECK(apply_retention(scratch.path(), 2)->empty());
  CHECK(remove_abandoned(scratch.path())->empty());
}

TEST_CASE("the best by a metric is kept beside the latest, until a better one exists") {
  auto scratch = scratch_directory{};
  auto by_loss = retention_policy{1, "loss", score_mode::min};
  auto save_with_loss = [&](std::uint64_t step, double loss) {
    auto state = sample_state{assorted_specs(), step};
    auto content = sample_manifest({step});
    content.metrics["loss"] = loss;
    REQUIRE(save(scratch.path(), state, content, 2));
    REQUIRE(apply_retention(scratch.path(), by_loss));
    return steps_in(scratch.path());
  };
  CHECK(save_with_loss(1, 3) == steps{1});
  CHECK(save_with_loss(2, 1) == steps{2});
  CHECK(save_with_loss(3, 2) == steps{2, 3});
  CHECK(save_with_loss(4, std::nan("")) == steps{2, 4});
  CHECK(save_with_loss(5, 1) == steps{5});
  CHECK(save_with_loss(6, 1.5) == steps{5, 6});
  // A checkpoint whose manifest is damaged is not the best.
  flip_bit(scratch.path() / "step-00000005" / "manifest.snapshot", 99);
  CHECK(save_with_loss(7, 9) == steps{6, 7});
}

TEST_CASE("retention removes nothing while the newest is damaged") {
  auto scratch = scratch_directory{};
  save_steps(scratch.path(), {1, 2, 3});
  flip_bit(scratch.path() / "step-00000003" / "part-0001.bin", 5);
  auto removed = apply_retention(scratch.path(), 1);
  REQUIRE_FALSE(removed);
  CHECK(removed.error().code == errc::damaged);
  CHECK(removed.error().message.find("no checkpoint is removed") != std::string::npos);
  CHECK(steps_in(scratch.path()) == steps{1, 2, 3});
}

TEST_CASE("keeping no checkpoint is refused") {
  auto scratch = scratch_directory{};
  save_steps(scratch.path(), {1});
  auto removed = apply_retention(scratch.path(), 0);
  REQUIRE_FALSE(removed);
  CHECK(removed.error().code == errc::invalid_argument);
  CHECK(steps_in(scratch.path()) == steps{1});
}

TEST_CASE("an interrupted removal does not block the next") {
  auto scratch = scratch_directory{};
  save_steps(scratch.path(), {1});
  fs::create_directories(scratch.path() / ".step-00000001.removed" / "inside");
  REQUIRE(remove_checkpoint(scratch.path() / "step-00000001"));
  CHECK(fs::is_empty(scratch.path()));
  auto again = remove_checkpoint(scratch.path() / "step-00000001");
  REQUIRE_FALSE(again);
  CHECK(again.error().code == errc::not_found);
}
