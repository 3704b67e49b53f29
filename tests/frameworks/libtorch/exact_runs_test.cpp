#include "torch_runs.hpp"

#include <cstdlib>
#include <vector>

using namespace troupe::testing;
using nlohmann::json;

TEST_CASE("a network with batch norm and dropout has the same bits on any number of workers, and when one is killed") {
  torch_runs here;
  auto one = here.trained("one", {{"workers", 1}});
  CHECK(one.first.size() == 64);
  // It learns: guessing has a loss of 1.1.
  CHECK(std::stod(one.second) < 0.6);
  for (auto workers : {2, 4})
    CHECK(here.trained("on-" + std::to_string(workers), {{"workers", workers}}) == one);
  CHECK(here.trained("killed", {{"workers", 3}, {"options", {{"kill_at", 9}}}}) == one);
  CHECK(here.trained("afterwards", {{"options", {{"overlap", false}}}}) == one);
  CHECK(here.trained("verified", {{"workers", 3}, {"verify", 1}}) == one);
  CHECK(here.last_err.find("determinism: 24 shards were computed twice, 24 of them by another worker") !=
        std::string::npos);
  // A difference is detected.
  CHECK(here.trained("no-dropout", {{"config", {{"dropout", 0.0}}}}).first != one.first);
}

TEST_CASE("a checkpoint's values make a module of the same kind a predictor, and no other") {
  torch_runs here;
  (void)here.trained("one", {{"workers", 2}});
  auto predicted = [&](const char* how) { return here.run("one", {{"predict", how}}); };
  auto good = predicted("same");
  INFO(good.err);
  CHECK(good.status == exit_status{0, {}});
  auto right = good.err.find("right: ");
  REQUIRE(right != std::string::npos);
  // With nine tenths dropped out, little more than a guess (a third) would be right.
  CHECK(std::stoi(good.err.substr(right + 7)) > 150);
  auto other = predicted("other");
  CHECK(other.status == exit_status{1, {}});
  CHECK_MESSAGE(other.err.find("of another model: tensor 'weight' is missing; 'bias' is missing") != std::string::npos,
                other.err);
  auto columns = predicted("columns");
  CHECK(columns.status == exit_status{1, {}});
  CHECK_MESSAGE(columns.err.find("shape [200, 6], expected [200, 3]") != std::string::npos, columns.err);
}

TEST_CASE("tensors that are not contiguous are tracked by copies") {
  torch_runs here;
  auto one = here.trained("one", {{"config", {{"channels_last", true}}}});
  (void)here.trained("halves", {{"workers", 2}, {"config", {{"channels_last", true}}}, {"steps", 11}});
  CHECK(here.trained("halves", {{"config", {{"channels_last", true}}}}) == one);
}

TEST_CASE("a joiner that replaces a lost worker has the others' bits") {
  torch_runs here;
  auto steps = 150;
  auto one = here.trained("one", {{"workers", 2}, {"steps", steps}});
  CHECK(here.trained("replaced",
                     {{"workers", 3}, {"steps", steps}, {"options", {{"kill_at", 5}, {"await_joiner", true}}}}) == one);
  // One generation without the lost worker, one with the new one.
  CHECK(here.last["generations"].size() >= 2);
}

TEST_CASE("each optimizer takes LibTorch's own steps, and a resumed run has its state") {
  torch_runs here;
  std::vector<std::string> optimizers{"adamw", "sgd"};
  if (std::getenv("TROUPE_LONG_TESTS") != nullptr)
    optimizers = {"adam", "adamw", "sgd", "rmsprop", "adagrad"};
  for (const auto& optimizer : optimizers) {
    CAPTURE(optimizer);
    auto config = json{{"optimizer", optimizer}, {"dropout", 0.0}};
    // One shard, so that LibTorch alone sums in the same order.
    auto whole = here.trained(optimizer, {{"config", config}, {"shards", 1}, {"options", {{"twin", true}}}});
    auto name = optimizer + "-halves";
    (void)here.trained(name, {{"config", config}, {"shards", 1}, {"steps", 9}});
    CHECK(here.trained(name, {{"config", config}, {"shards", 1}}).first == whole.first);
  }
}

TEST_CASE("a scheduler that the replica calls goes on where it was, in a resumed run and in a joiner") {
  torch_runs here;
  for (const std::string name : {"by-replica", "every-third", "by-number"}) {
    CAPTURE(name);
    const json options{{"scheduled", name}};
    const auto one = here.trained(name, {{"options", options}});
    const auto rate = here.last["metrics"]["rate"].get<double>();
    CHECK(rate == (name == "by-replica" ? 0.01 / 16 : name == "every-third" ? 0.01 / 2 : 0.01 / 24));
    // Neither 5 steps nor 3 divide this.
    (void)here.trained(name + "-halves", {{"workers", 2}, {"steps", 11}, {"options", options}});
    CHECK(here.trained(name + "-halves", {{"options", options}}) == one);
    CHECK(here.last["metrics"]["rate"] == rate);
    CHECK(here.last_err.find("replica.schedule") == std::string::npos);
  }
  // The rate by the step's number changes in each step: a joiner's first has its own.
  for (const std::string name : {"by-replica", "by-number"}) {
    CAPTURE(name);
    const json config{{"options", {{"scheduled", name}}}, {"steps", 150}};
    const auto one = here.trained(name + "-undisturbed", config);
    auto replaced = config;
    replaced["workers"] = 3;
    replaced["options"].update({{"kill_at", 8}, {"await_joiner", true}});
    CHECK(here.trained(name + "-replaced", replaced) == one);
    CHECK(here.last["generations"].size() >= 2);
  }
}

TEST_CASE("a scheduler that the body calls is told, because a resumed run begins it anew") {
  torch_runs here;
  (void)here.trained("one", {{"workers", 2}, {"options", {{"scheduled", "by-body"}}}});
  CHECK(here.last["metrics"]["rate"] == 0.01 / 16);
  const auto first = here.last_err.find("changed after replica.apply in step 6. A scheduler");
  CHECK(first != std::string::npos);
  CHECK(here.last_err.find("changed after replica.apply", first + 50) == std::string::npos);
}

TEST_CASE("a resumed run goes on with the learning rate that it had, unless the program begins with another") {
  torch_runs here;
  const auto rate = [&](const json& options, std::uint64_t steps) {
    (void)here.trained("run", {{"options", options}, {"steps", steps}});
    return here.last["metrics"]["rate"].get<double>();
  };
  CHECK(rate({{"scheduled", "by-body"}}, 7) == 0.01 / 2);
  CHECK(rate(json::object(), 9) == 0.01 / 2);
  CHECK(rate({{"rate", 0.02}}, 11) == 0.02);
  CHECK(rate({{"rate", 0.02}, {"scheduled", "by-replica"}}, 12) == 0.02);
  // Counted from the first step on.
  CHECK(rate({{"rate", 0.04}, {"scheduled", "by-replica"}}, 13) == 0.04 / 4);
}
