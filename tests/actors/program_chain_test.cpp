#include <troupe/actors/decisions/program_chain.hpp>

#include "scratch.hpp"

#include <doctest/doctest.h>

namespace troupe::actors {

namespace {

const auto* const numerics =
    R"({"architecture":"x","cpu.avx2":"yes","libc.version":"2.36","object.libm.so.6":"ab","torch.version":"1"})";

} // namespace

TEST_CASE("what belongs to libraries is told from what belongs to the host") {
  CHECK(libraries_in(numerics) == R"({"libc.version":"2.36","object.libm.so.6":"ab","torch.version":"1"})");
  CHECK(without_libraries(numerics) == R"({"architecture":"x","cpu.avx2":"yes"})");
  CHECK(libraries_in("") == "{}");
}

TEST_CASE("a changed program is a new link of the chain, which the manifest of a checkpoint keeps") {
  auto old = serialization::sample_manifest({100});
  old.earlier_programs_json.clear();
  const auto fix = describe_program("fixed", old.configuration_json, old.numerics_fingerprint_json);
  const auto chain = go_on_with(programs_of(old), fix, {100});
  REQUIRE(chain.size() == 2);
  CHECK(chain[0].build_id == "c0ffee");
  CHECK(chain[0].first_step == step_id{1});
  CHECK(chain[0].last_step == step_id{100});
  CHECK(chain[1].build_id == "fixed");
  CHECK(chain[1].first_step == step_id{101});
  // Its next checkpoint, and a third program.
  auto next = old;
  next.step = {150};
  next.program_build_id = "fixed";
  next.earlier_programs_json = earlier_programs_json(chain);
  CHECK(programs_of(next)[0] == chain[0]);
  auto warmer = describe_program("fixed", R"({"lr":0.7})", old.numerics_fingerprint_json);
  const auto third = go_on_with(programs_of(next), warmer, {150});
  REQUIRE(third.size() == 3);
  CHECK(third[1].first_step == step_id{101});
  CHECK(third[1].last_step == step_id{150});
  CHECK(third[2].first_step == step_id{151});
}

TEST_CASE("the same program goes on as one, and says nothing of others") {
  auto old = serialization::sample_manifest({100});
  old.earlier_programs_json.clear();
  const auto same = describe_program(old.program_build_id, old.configuration_json, old.numerics_fingerprint_json);
  const auto chain = go_on_with(programs_of(old), same, {100});
  REQUIRE(chain.size() == 1);
  CHECK(chain[0].first_step == step_id{1});
  CHECK(earlier_programs_json(chain).empty());
}

} // namespace troupe::actors
