#include "booster.hpp"
#include "rabit_group.hpp"
#include "settings.hpp"

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::xgboost;

namespace {

training_config good() {
  training_config result;
  result.features = {"height", "width"};
  result.label = "weight of a tree";
  return result;
}

} // namespace

TEST_CASE("an invalid configuration is refused by name") {
  CHECK(settings_of(good()));
  auto refused = [](auto change, const std::string& name) {
    auto config = good();
    change(config);
    auto result = settings_of(config);
    REQUIRE(!result);
    CHECK(result.error().code == errc::invalid_argument);
    CHECK_MESSAGE(result.error().message.find(name) != std::string::npos, result.error().message);
  };
  refused([](auto& c) { c.features.clear(); }, "features");
  refused([](auto& c) { c.rounds = 0; }, "rounds");
  refused([](auto& c) { c.parameters = nlohmann::json::array(); }, "parameters");
  refused([](auto& c) { c.parameters["seed"] = 7; }, "run.seed");
  refused([](auto& c) { c.parameters["booster"] = "gblinear"; }, "gbtree");
  refused([](auto& c) { c.parameters["max_depth"] = 0; }, "model_bytes");
  refused([](auto& c) { c.deadline = std::chrono::seconds{0}; }, "deadline");
}

TEST_CASE("settings reach the workers unchanged") {
  auto config = good();
  config.parameters = {{"max_depth", 3}, {"objective", "binary:logistic"}};
  config.weight = "trust";
  config.checkpoint_every = 7;
  config.model_bytes = 123'456;
  config.deadline = std::chrono::seconds{99};
  config.library = "/opt/libxgboost.so";
  config.trainer.cluster.trusted_network = true;
  auto sent = settings_of(config).value();
  auto own = own_settings_of(sent);
  auto got = read_settings(config_of(this_library, sent, own, {{"mine", 1}}),
                           options_of(this_library, sent, own, {{"file", "x"}}))
                 .value();
  CHECK(got.parameters == config.parameters);
  CHECK(got.features == config.features);
  CHECK(got.label == "weight of a tree");
  CHECK(got.weight == "trust");
  CHECK(got.checkpoint_every == 7);
  CHECK(got.model_bytes == 123'456);
  CHECK(got.deadline == config.deadline);
  CHECK(got.trusted_network);
  CHECK(got.library == "/opt/libxgboost.so");
  CHECK(!read_settings({{"mine", 1}}, nlohmann::json::object()));
}

TEST_CASE("rows' sums go between hosts in clear text only where the network is trusted") {
  for (const auto* here : {"127.0.0.1", "localhost", "::1"})
    CHECK(check_data_plane(here, false));
  CHECK(check_data_plane("10.0.0.7", true));
  for (const auto* elsewhere : {"10.0.0.7", "node-1.example.org", "fd00::7"}) {
    auto refused = check_data_plane(elsewhere, false);
    REQUIRE(!refused);
    CHECK(refused.error().code == errc::invalid_argument);
    CHECK(refused.error().message.find(elsewhere) != std::string::npos);
    CHECK(refused.error().message.find("cluster.trusted_network") != std::string::npos);
  }
}

TEST_CASE("the memory for a model grows with rounds, classes and leaves") {
  auto bytes = [](const nlohmann::json& parameters, std::uint64_t rounds) {
    return most_model_bytes(parameters, rounds).value();
  };
  CHECK(bytes({{"max_depth", 6}}, 100) >= 100 * 127 * 35);
  CHECK(bytes({{"max_depth", "6"}}, 100) == bytes({}, 100));
  CHECK(bytes({{"num_class", 8}}, 100) >= 4 * bytes({}, 100));
  CHECK(bytes({{"max_leaves", 3}}, 1000) < bytes({}, 1000));
  CHECK(bytes({{"max_leaves", 3}, {"max_depth", 0}}, 10) > 0);
  CHECK(!most_model_bytes({{"max_depth", 0}}, 10));
}

TEST_CASE("the metrics of an evaluation are parsed from XGBoost's line") {
  auto found = parse_evaluation("[7]\ttrain-rmse:0.25000\tvalid-a:b-auc:5e-1\tbad-error:nothing");
  CHECK(found == metric_map{{"train-rmse", 0.25}, {"valid-a:b-auc", 0.5}});
  CHECK(parse_evaluation("").empty());
  CHECK(parse_evaluation("[0]").empty());
}
