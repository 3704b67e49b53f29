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
