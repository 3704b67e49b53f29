#include "booster.hpp"
#include "model_room.hpp"
#include "settings.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

using namespace troupe;
using namespace troupe::xgboost;

namespace {

training_config good() {
  training_config result;
  result.features = {"a", "b"};
  result.label = "y";
  return result;
}

} // namespace

TEST_CASE("a configuration that cannot be meant is refused, by name") {
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
  refused([](auto& c) { c.label.clear(); }, "label");
  refused([](auto& c) { c.features.push_back("y"); }, "label 'y'");
  refused([](auto& c) { c.rounds = 0; }, "rounds");
  refused([](auto& c) { c.parameters = nlohmann::json::array(); }, "parameters");
  refused([](auto& c) { c.parameters["seed"] = 7; }, "run.seed");
  refused([](auto& c) { c.parameters["booster"] = "gblinear"; }, "gbtree");
  refused([](auto& c) { c.parameters["max_depth"] = 0; }, "model_bytes");
  refused([](auto& c) { c.deadline = std::chrono::seconds{0}; }, "deadline");
}

TEST_CASE("settings arrive at the workers as they were") {
  auto config = good();
  config.parameters = {{"max_depth", 3}, {"objective", "binary:logistic"}};
  config.weight = "w";
  config.checkpoint_every = 7;
  config.model_bytes = 123'456;
  config.deadline = std::chrono::seconds{99};
  auto sent = settings_of(config).value();
  auto got = read_settings(config_of(sent, {{"mine", 1}}), options_of(sent, {{"file", "x"}})).value();
  CHECK(got.parameters == config.parameters);
  CHECK(got.features == config.features);
  CHECK(got.label == "y");
  CHECK(got.weight == "w");
  CHECK(got.checkpoint_every == 7);
  CHECK(got.model_bytes == 123'456);
  CHECK(got.deadline == config.deadline);
  CHECK(!read_settings({{"mine", 1}}, nlohmann::json::object()));
}

TEST_CASE("the room for a model grows with rounds, classes and leaves") {
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

TEST_CASE("a model comes out of its room as it went in, and one that is too large is refused") {
  std::vector<std::byte> room(20, std::byte{7});
  std::vector<std::byte> model{std::byte{1}, std::byte{2}, std::byte{3}};
  REQUIRE(put_model(model, room));
  auto got = get_model(room).value();
  CHECK(std::vector<std::byte>(got.begin(), got.end()) == model);
  CHECK(room.back() == std::byte{0});
  CHECK(put_model(std::vector<std::byte>(12), room));
  CHECK(put_model(std::vector<std::byte>(13), room).error().code == errc::unsatisfiable);
  room[0] = std::byte{13};
  CHECK(get_model(room).error().code == errc::damaged);
  CHECK(get_model(std::span{room}.first(7)).error().code == errc::damaged);
}

TEST_CASE("the metrics of an evaluation are read from XGBoost's line") {
  auto found = parse_evaluation("[7]\ttrain-rmse:0.25000\tvalid-a:b-auc:5e-1\tbad-error:nothing");
  CHECK(found == metric_map{{"train-rmse", 0.25}, {"valid-a:b-auc", 0.5}});
  CHECK(parse_evaluation("").empty());
  CHECK(parse_evaluation("[0]").empty());
}

TEST_CASE("features are taken from columns of any number type, in the order of their names; missing ones are NaN") {
  auto kinds = std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"x", "y"});
  auto set = value_or_throw(data::make_table(
      {data::make_column("v", std::vector<float>{1, 2, 3, std::numeric_limits<float>::quiet_NaN()}, {2}),
       data::make_column("k", std::vector<std::int64_t>{1, -1}, {}, kinds),
       data::make_column("n", std::vector<std::int64_t>{-1, 5}), data::make_column("d", std::vector<double>{0.5, 0.25}),
       data::make_column("b", std::vector<std::uint8_t>{0, 255})}));
  data::batch samples;
  value_or_throw(set->fetch(std::vector<std::uint64_t>{0, 1}, samples));
  auto names = std::vector<std::string>{"d", "v", "k", "n", "b"};
  auto rows = features_of(samples, names).value();
  REQUIRE(rows.size() == 12);
  CHECK(std::vector<float>(rows.begin(), rows.begin() + 8) == std::vector<float>{0.5, 1, 2, 1, -1, 0, 0.25, 3});
  CHECK(std::isnan(rows[8]));
  CHECK(std::isnan(rows[9]));
  CHECK(rows[10] == 5);
  CHECK(rows[11] == 255);
  auto absent = features_of(samples, std::vector<std::string>{"z"});
  CHECK(absent.error().code == errc::not_found);
  CHECK(absent.error().message.find("'z'") != std::string::npos);
}
