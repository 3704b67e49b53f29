#include <troupe/boosting/settings.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::boosting;

namespace {

constexpr tree_library made_up{"Made Up", "madeup"};

settings good() {
  return {.parameters = {{"depth", 3}}, .features = {"a", "b"}, .label = "y", .weight = "w", .checkpoint_every = 7};
}

} // namespace

TEST_CASE("invalid values of the shared settings are refused by name") {
  auto refused = [](auto change, const std::string& name, std::uint64_t rounds = 3) {
    auto what = good();
    change(what);
    auto result = complete(what, rounds, std::nullopt, "depth");
    REQUIRE(!result);
    CHECK(result.error().code == errc::invalid_argument);
    CHECK_MESSAGE(result.error().message.find(name) != std::string::npos, result.error().message);
  };
  refused([](settings& s) { s.features.clear(); }, "training_config.features is empty");
  refused([](settings& s) { s.label.clear(); }, "training_config.label is empty");
  refused([](settings& s) { s.features.emplace_back("y"); }, "features contains the label 'y'");
  refused([](settings&) {}, "training_config.rounds is 0", 0);
  refused([](settings&) {}, "model_bytes must be set: with these depth a model has no useful limit");
}

TEST_CASE("the model's memory is what was configured or can be needed, and at least 4 KiB") {
  auto capacity = [](std::uint64_t asked) {
    auto what = good();
    what.model_bytes = asked;
    value_or_throw(complete(what, 3, 123'456, "depth"));
    return what.model_bytes;
  };
  CHECK(capacity(0) == 123'456);
  CHECK(capacity(99'999) == 99'999);
  CHECK(capacity(1) == 4096);
  CHECK(model_capacity(10, 1000) == std::uint64_t{1} << 17);
  CHECK(!model_capacity(1e9, 1e9));
  CHECK(number_of({{"b", "7.5"}}, {"a", "b"}, 1) == 7.5);
  CHECK(number_of({{"a", 2}, {"b", 3}}, {"a", "b"}, 1) == 2);
  CHECK(number_of({{"a", "many"}}, {"a", "b"}, 1) == 1);
  CHECK(number_of({{"a", nlohmann::json::array()}}, {"a"}, 4) == 4);
}

TEST_CASE("settings reach the workers unchanged, beside the user's own") {
  auto sent = good();
  sent.model_bytes = 5000;
  auto own = own_settings{{{"bins", 9}}, {{"limit", 8}}};
  auto config = config_of(made_up, sent, own, {{"mine", 1}});
  auto options = options_of(made_up, sent, own, {{"file", "x"}});
  CHECK(config["config"] == nlohmann::json{{"mine", 1}});
  CHECK(options["options"] == nlohmann::json{{"file", "x"}});
  settings got;
  int bins = 0;
  int limit = 0;
  auto read = [&](const nlohmann::json& decides, const nlohmann::json& more) {
    decides.at("bins").get_to(bins);
    more.at("limit").get_to(limit);
  };
  value_or_throw(read_settings(made_up, config, options, got, read));
  CHECK(got.parameters == sent.parameters);
  CHECK(got.features == sent.features);
  CHECK(got.label == "y");
  CHECK(got.weight == "w");
  CHECK(got.checkpoint_every == 7);
  CHECK(got.model_bytes == 5000);
  CHECK(bins == 9);
  CHECK(limit == 8);
  // A run of another library, one without the library's own part, and one of no tree trainer.
  for (const auto& [library, wrong] :
       {std::pair{tree_library{"Other", "other"}, config}, std::pair{made_up, config_of(made_up, sent, {}, {})},
        std::pair{made_up, nlohmann::json{{"mine", 1}}}}) {
    auto result = read_settings(library, wrong, options, got, read);
    REQUIRE(!result);
    CHECK(result.error().message.find("make_trainer") != std::string::npos);
  }
}

TEST_CASE("the run's identity keeps the field names of existing checkpoints") {
  // With another name, no run could resume from existing checkpoints.
  CHECK(config_of(made_up, good(), {{{"bins", 9}}, {}}, {{"mine", 1}}).dump() ==
        R"({"config":{"mine":1},"madeup":{"bins":9,"checkpoint_every":7,"features":["a","b"],"label":"y",)"
        R"("parameters":{"depth":3},"weight":"w"}})");
  CHECK(made_up.model_tensor() == "madeup/model");
}
