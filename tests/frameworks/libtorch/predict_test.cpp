#include "scratch_runs.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace troupe::testing;
using nlohmann::json;

TEST_CASE("a LibTorch checkpoint predicts for a whole data set over the workers of two nodes, with the same bytes") {
  scratch_runs here;
  auto run = [&](const std::string& name, json wanted) {
    wanted["storage"] = here.path("runs").string();
    wanted["name"] = name;
    auto ran = here.run({built("tests/bin/torch_run"), wanted.dump()});
    INFO(name << ": " << ran.err);
    REQUIRE(ran.status == exit_status{0, {}});
    return read_file(here.path("runs") / (name + ".csv"));
  };
  run("model", {{"workers", 1}, {"steps", 6}});
  auto one = run("one", {{"from", "model"}, {"workers", 1}});
  CHECK(one.starts_with("a,b,c\n"));
  CHECK(std::ranges::count(one, '\n') == 201);
  auto a = here.start_node();
  auto b = here.start_node();
  CHECK(run("three", {{"from", "model"}, {"workers", 3}, {"nodes", {a.address, b.address}}}) == one);
}
