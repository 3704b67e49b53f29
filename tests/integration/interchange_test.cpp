#include "scratch_runs.hpp"

#include <doctest/doctest.h>

using namespace troupe::testing;

namespace {

/// Runs `troupe checkpoint`.
outcome tool(scratch_runs& here, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {troupe_program(), "checkpoint"});
  return here.run(std::move(arguments));
}

void succeed(const outcome& ran) {
  INFO(ran.out, ran.err);
  REQUIRE(ran.status == exit_status{0, {}});
}

} // namespace

TEST_CASE("a run starts from an imported checkpoint as from the exported one") {
  scratch_runs here;
  succeed(here.run(here.charlm("first")));
  auto exported = here.result("first").at("latest_checkpoint").get<std::string>();
  auto file = here.path("model.safetensors").string();
  auto imported = here.path("imported").string();
  succeed(tool(here, {"export", here.run_directory("first").string(), file}));
  succeed(tool(here, {"import", file, imported}));
  auto shown = tool(here, {"show", imported, "--sha256", "--json"});
  succeed(shown);
  CHECK(nlohmann::json::parse(shown.out)["state_sha256"] == here.result("first").at("state_sha256"));
  // Different seeds; otherwise the second run would compute the same as the first.
  succeed(here.run(here.charlm("from-original", {"--from", exported, "--seed", "9"})));
  succeed(here.run(here.charlm("from-import", {"--from", imported, "--seed", "9", "--workers", "3"})));
  CHECK(here.result("from-import").at("state_sha256") == here.result("from-original").at("state_sha256"));
  CHECK(here.result("from-import").at("state_sha256") != here.result("first").at("state_sha256"));
}

TEST_CASE("a run rejects an imported checkpoint with other tensors and names them") {
  scratch_runs here;
  succeed(here.run(here.charlm("first")));
  auto array = here.path("hidden.bias.npy").string();
  succeed(tool(here, {"export", here.run_directory("first").string(), array, "--tensor", "hidden.bias"}));
  succeed(tool(here, {"import", array, here.path("one").string()}));
  auto ran = here.run(here.charlm("second", {"--from", here.path("one").string()}));
  CHECK(ran.status == exit_status{1, {}});
  CHECK(contains(ran.err, "missing in it: "));
}

TEST_CASE("checkpoints of a running run can be inspected, but not removed") {
  scratch_runs here;
  auto directory = here.run_directory("long");
  auto process = here.start(here.charlm("long", {"--steps", "1000000", "--checkpoint-every", "5"}));
  REQUIRE(becomes_true([&] { return std::filesystem::exists(directory / "checkpoints" / "step-00000005"); }));
  auto refused = tool(here, {"rm", directory.string(), "--keep", "1"});
  CHECK(refused.status == exit_status{2, {}});
  CHECK(contains(refused.err, "process " + std::to_string(process.pid())));
  process.signal(SIGTERM);
  process.wait();
  succeed(tool(here, {"ls", directory.string()}));
  succeed(tool(here, {"verify", directory.string()}));
  succeed(tool(here, {"rm", directory.string(), "--keep", "1"}));
  auto left = tool(here, {"ls", directory.string(), "--json"});
  succeed(left);
  CHECK(nlohmann::json::parse(left.out)["checkpoints"].size() == 1);
}
