#include "booster.hpp"
#include "library.hpp"
#include "settings.hpp"

#include <doctest/doctest.h>

#include <scratch_directory.hpp>

#include <fstream>
#include <string>

using namespace troupe;
using namespace troupe::lightgbm;

namespace {

training_config good() {
  training_config result;
  result.features = {"a", "b"};
  result.label = "y";
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
  refused([](auto& c) { c.bin_rows = 0; }, "bin_rows");
  refused([](auto& c) { c.parameters = nlohmann::json::array(); }, "parameters");
  refused([](auto& c) { c.parameters["seed"] = 7; }, "run.seed");
  refused([](auto& c) { c.parameters["num_machines"] = 7; }, "scaling.num_workers");
  refused([](auto& c) { c.parameters["boosting"] = "dart"; }, "'dart' cannot resume");
  refused([](auto& c) { c.parameters["tree_learner"] = "feature"; }, "'feature'");
  refused([](auto& c) { c.parameters["objective"] = "l2 num_machines=3"; }, "blank");
  refused([](auto& c) { c.parameters["num_leaves"] = 1e12; }, "model_bytes");
}

TEST_CASE("settings reach the workers unchanged") {
  auto config = good();
  config.parameters = {{"num_leaves", 7}, {"objective", "binary"}};
  config.weight = "w";
  config.checkpoint_every = 7;
  config.bin_rows = 99;
  config.model_bytes = 123'456;
  config.library = "/opt/lib_lightgbm.so";
  auto sent = settings_of(config).value();
  auto own = own_settings_of(sent);
  auto got = read_settings(config_of(this_library, sent, own, {{"mine", 1}}),
                           options_of(this_library, sent, own, {{"file", "x"}}))
                 .value();
  CHECK(got.parameters == config.parameters);
  CHECK(got.features == config.features);
  CHECK(got.label == "y");
  CHECK(got.weight == "w");
  CHECK(got.checkpoint_every == 7);
  CHECK(got.bin_rows == 99);
  CHECK(got.model_bytes == 123'456);
  CHECK(got.library == "/opt/lib_lightgbm.so");
  CHECK(!read_settings({{"mine", 1}}, nlohmann::json::object()));
}

TEST_CASE("parameters become LightGBM's text, with exact defaults and the run's own settings") {
  auto has = [](const std::string& text, const std::string& part) {
    return (" " + text + " ").find(" " + part + " ") != std::string::npos;
  };
  auto text = parameter_text({{"eval_at", {1, 3}}, {"bagging_fraction", 0.5}, {"is_unbalance", true}}, 4, 9);
  for (const auto* part :
       {"eval_at=1,3", "bagging_fraction=0.5", "is_unbalance=true", "num_threads=1", "deterministic=true",
        "force_col_wise=true", "tree_learner=data", "num_machines=4", "seed=9"})
    CHECK_MESSAGE(has(text, part), text);
  CHECK(has(parameter_text({{"tree_learner", "voting"}}, 2, 1), "tree_learner=voting"));
  auto alone = parameter_text({{"tree_learner", "voting"}, {"num_threads", 2}}, 1, std::uint64_t{1} << 40);
  CHECK(alone.find("tree_learner") == std::string::npos);
  CHECK(has(alone, "num_threads=2"));
  CHECK(has(alone, "seed=0"));
  for (const auto& yes : {nlohmann::json(true), nlohmann::json("true"), nlohmann::json(1)})
    CHECK(!has(parameter_text({{"force_row_wise", yes}}, 1, 1), "force_col_wise=true"));
  CHECK(has(parameter_text({{"force_row_wise", "false"}}, 1, 1), "force_col_wise=true"));
}

TEST_CASE("the memory for a model grows with rounds, classes and leaves") {
  auto bytes = [](const nlohmann::json& parameters, std::uint64_t rounds) {
    return most_model_bytes(parameters, rounds).value();
  };
  CHECK(bytes({{"num_leaves", 31}}, 100) == bytes({}, 100));
  CHECK(bytes({{"num_leaves", "63"}}, 100) > bytes({}, 100));
  CHECK(bytes({{"num_class", 8}}, 100) >= 4 * bytes({}, 100));
  CHECK(!most_model_bytes({{"num_leaves", 1e12}}, 10));
}

TEST_CASE("a model of a newer format than the library's is refused") {
  auto model = [](const std::string& version) { return "tree\nversion=" + version + "\nnum_class=1\n"; };
  CHECK_NOTHROW(check_format(model("v4"), model("v4")));
  CHECK_NOTHROW(check_format(model("v3"), model("v4")));
  CHECK_NOTHROW(check_format(model("v9"), model("v10")));
  CHECK_THROWS_WITH_AS(check_format(model("v5"), model("v4")),
                       "the model has format v5, and this LightGBM knows formats up to v4", exception);
}

TEST_CASE("a library that is missing, or is not LightGBM's, is refused with what to do") {
  testing::scratch_directory scratch;
  auto absent = find_library(scratch.path() / "lib_lightgbm.so");
  REQUIRE(!absent);
  CHECK(absent.error().code == errc::unsatisfiable);
  CHECK(absent.error().message.find("is not a file") != std::string::npos);
  auto text = scratch.path() / "text.so";
  std::ofstream{text} << "no library";
  CHECK(find_library(text) == text);
  auto opened = library::open(text);
  REQUIRE(!opened);
  CHECK(opened.error().message.find("cannot be opened") != std::string::npos);
  // A library with other functions: the C library's mathematics.
  auto other = library::open("libm.so.6");
  REQUIRE(!other);
  CHECK_MESSAGE(other.error().message.find("LightGBM 4 is required") != std::string::npos, other.error().message);
}
