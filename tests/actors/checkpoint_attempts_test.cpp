#include <troupe/actors/decisions/checkpoint_attempts.hpp>

#include <troupe/serialization/checkpoint/chunk_plan.hpp>
#include <troupe/serialization/checkpoint/directory.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::actors;

namespace {

const auto when = std::chrono::sys_time<std::chrono::milliseconds>{std::chrono::milliseconds{1'763'650'000'123}};

/// What rank `rank` of `world_size` would report.
checkpoint_part part_of(std::uint32_t rank, std::uint32_t world_size, step_id step = {100}, std::uint32_t attempt = 1) {
  checkpoint_part result;
  result.run = {"run"};
  result.generation = {2};
  result.step = step;
  result.attempt = attempt;
  result.rank = {rank};
  result.world_size = world_size;
  result.tensors = {{"w", dtype::f32, {3000}}, {"b", dtype::f64, {5}}};
  result.metrics = {{"loss", 0.5 + rank}};
  result.values_json = R"({"a":1})";
  auto plan = serialization::plan_chunks(result.tensors, world_size);
  result.report.part = rank;
  result.report.file = serialization::part_file_name(rank);
  result.report.size_bytes = plan.part_sizes_bytes[rank];
  for (const auto& chunk : plan.chunks_of(rank))
    result.report.chunks.push_back({chunk.tensor, chunk.chunk, 42u + rank});
  return result;
}

checkpoint_metadata metadata() {
  return {{"run"}, 17, 8, 64, 1, "c0ffee", R"({"lr":0.5})", "digits 1797", R"({"cpu":"v3"})", {}};
}

} // namespace

TEST_CASE("the last part makes the checkpoint, and its manifest says all that is known") {
  checkpoint_attempts attempts;
  attempts.set_metadata(metadata());
  CHECK_FALSE(attempts.add(part_of(1, 2), when));
  auto whole = attempts.add(part_of(0, 2), when);
  REQUIRE(whole);
  REQUIRE(*whole);
  CHECK((*whole)->temporary_directory == ".step-00000100.rrun.g2.a1.tmp");
  const auto& content = (*whole)->content;
  CHECK(content.run.value == "run");
  CHECK(content.step.value == 100);
  CHECK(content.generation.value == 2);
  CHECK(content.seed == 17);
  CHECK(content.shards == 8);
  CHECK(content.global_batch == 64);
  CHECK(content.tree_version == 1);
  CHECK(content.program_build_id == "c0ffee");
  CHECK(content.configuration_json == R"({"lr":0.5})");
  CHECK(content.configuration_digest == serialization::sha256_hex(serialization::bytes_of(R"({"lr":0.5})")));
  CHECK(content.data_fingerprint == "digits 1797");
  CHECK(content.numerics_fingerprint_json == R"({"cpu":"v3"})");
  CHECK(content.values_json == R"({"a":1})");
  CHECK(content.world_size == 2);
  CHECK(content.created == when);
  CHECK(content.metrics.at("loss") == 0.5);
  REQUIRE(content.parts.size() == 2);
  CHECK(content.parts[1].name == "part-0001.bin");
  REQUIRE(content.tensors.size() == 2);
  CHECK(content.tensors[0].spec == tensor_spec{"w", dtype::f32, {3000}});
}

TEST_CASE("a failure is told once the last rank has spoken, whoever failed") {
  for (std::uint32_t failing = 0; failing < 3; ++failing) {
    checkpoint_attempts attempts;
    attempts.set_metadata(metadata());
    for (std::uint32_t rank = 0; rank < 3; ++rank) {
      auto part = part_of(rank, 3);
      if (rank == failing)
        part.reason = {errc::io_error, "no space"};
      auto whole = attempts.add(part, when);
      REQUIRE(whole.has_value() == (rank == 2));
      if (whole) {
        REQUIRE_FALSE(*whole);
        CHECK(whole->error() == error{errc::io_error, "no space"});
      }
    }
  }
}

TEST_CASE("a part that is told twice counts once") {
  checkpoint_attempts attempts;
  attempts.set_metadata(metadata());
  CHECK_FALSE(attempts.add(part_of(0, 2), when));
  CHECK_FALSE(attempts.add(part_of(0, 2), when));
  CHECK(attempts.add(part_of(1, 2), when));
}

TEST_CASE("attempts, steps and generations do not mix") {
  checkpoint_attempts attempts;
  attempts.set_metadata(metadata());
  auto other_generation = part_of(0, 2);
  other_generation.generation = {3};
  CHECK_FALSE(attempts.add(part_of(0, 2), when));
  CHECK_FALSE(attempts.add(part_of(1, 2, {101}), when));
  CHECK_FALSE(attempts.add(part_of(1, 2, {100}, 2), when));
  CHECK_FALSE(attempts.add(other_generation, when));
  CHECK(attempts.add(part_of(1, 2), when));
}

TEST_CASE("temporary directories that nobody writes into any more are told from those in use") {
  const auto run = run_id{"run"};
  const auto in_use = [&](const std::string& name) { return may_be_in_use(name, run, {7}, {100}); };
  const auto name_of = [](run_id of, std::uint64_t step, std::uint64_t generation, std::uint32_t attempt) {
    return serialization::temporary_name({std::move(of), {step}, {generation}, attempt});
  };
  CHECK(in_use(name_of(run, 101, 7, 1)));
  CHECK(in_use(name_of(run, 1, 8, 1)));
  CHECK_FALSE(in_use(name_of(run, 100, 7, 1)));
  CHECK_FALSE(in_use(name_of(run, 123'456'789'012, 6, 2)));
  CHECK_FALSE(in_use(".step-00000050.removed"));
  CHECK(in_use(name_of(run, 50, 6, serialization::first_last_copy + 3)));
  // Whoever wrote these has ended, or was given up with its run.
  CHECK_FALSE(in_use(name_of(run_id{"another"}, 101, 7, 1)));
  CHECK_FALSE(in_use(name_of(run_id{"another"}, 50, 6, serialization::first_last_copy + 3)));
  // None of ours, or not understood.
  for (const auto* name :
       {"step-00000100", "", ".step-", ".step-1", ".step-00000001.rx.gx.a1.tmp", ".step-00000001.g1.a1.tmp", "notes"})
    CHECK(in_use(name));
}

TEST_CASE("a report that does not follow the plan makes no checkpoint") {
  checkpoint_attempts attempts;
  attempts.set_metadata(metadata());
  auto wrong = part_of(1, 2);
  wrong.report.size_bytes += 4096;
  CHECK_FALSE(attempts.add(part_of(0, 2), when));
  auto whole = attempts.add(wrong, when);
  REQUIRE(whole);
  REQUIRE_FALSE(*whole);
  CHECK(whole->error().code == errc::mismatch);
}
