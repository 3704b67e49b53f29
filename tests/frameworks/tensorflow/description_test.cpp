#include <description.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>
#include <scratch_directory.hpp>

#include <filesystem>
#include <fstream>
#include <string>

using namespace troupe;
using namespace troupe::tensorflow;
using nlohmann::json;

namespace {

json function_of(int inputs, int outputs) {
  auto result = json{{"inputs", json::array()}, {"outputs", json::array()}};
  for (int i = 0; i < inputs; ++i)
    result["inputs"].push_back("in:" + std::to_string(i));
  for (int i = 0; i < outputs; ++i)
    result["outputs"].push_back("out:" + std::to_string(i));
  return result;
}

/// A dense layer with a batch norm's average and a dropout's seed, and its optimizer.
json sample() {
  return {{"format", 1},
          {"tensorflow", "2.21.0"},
          {"variables",
           {{{"name", "kernel"}, {"dtype", "float32"}, {"shape", {3, 2}}, {"role", "trainable"}},
            {{"name", "mean"}, {"dtype", "float32"}, {"shape", {2}}, {"role", "state"}},
            {{"name", "seed"}, {"dtype", "int64"}, {"shape", {2}}, {"role", "seed"}},
            {{"name", "adam/iteration"}, {"dtype", "int64"}, {"shape", json::array()}, {"role", "optimizer"}}}},
          {"inputs", {{{"name", "x"}, {"dtype", "float32"}, {"shape", {3}}}}},
          {"target", {{"name", "y"}, {"dtype", "int64"}, {"shape", json::array()}}},
          {"output", {2}},
          {"functions",
           {{"gradients", function_of(5, 4)},
            {"apply", function_of(3, 2)},
            {"evaluate", function_of(5, 2)},
            {"predict", function_of(4, 1)},
            {"initialise", function_of(0, 4)}}}};
}

struct exported {
  testing::scratch_directory directory;

  explicit exported(const std::string& text) {
    const auto path = directory.path();
    std::filesystem::create_directories(path / "assets.extra");
    std::filesystem::create_directories(path / "variables");
    std::ofstream{path / "assets.extra" / "troupe.json"} << text;
    std::ofstream{path / "saved_model.pb"} << "graph";
    std::ofstream{path / "variables" / "variables.data-00000-of-00001"} << "values";
  }

  [[nodiscard]] expected<model_description> read() const { return read_description(directory.path()); }
};

error refused(const json& description) {
  auto found = exported{description.dump()}.read();
  REQUIRE_FALSE(found);
  return found.error();
}

} // namespace

TEST_CASE("a description is read, and its digest is that of the model's files") {
  const auto here = exported{sample().dump()};
  const auto found = value_or_throw(here.read());
  REQUIRE(found.variables.size() == 4);
  CHECK(found.variables[0].spec == tensor_spec{"kernel", dtype::f32, {3, 2}});
  CHECK(found.variables[2].role == variable_role::seed);
  CHECK(found.target.type == dtype::i64);
  CHECK(found.outputs == 2);
  CHECK(found.functions.at("gradients").outputs.back() == "out:3");
  CHECK(found.digest == value_or_throw(here.read()).digest);
  std::ofstream{here.directory.path() / "saved_model.pb"} << "other";
  CHECK(found.digest != value_or_throw(here.read()).digest);
}

TEST_CASE("what is no description, or contradicts itself, is refused with the reason") {
  testing::scratch_directory empty;
  const auto missing = read_description(empty.path());
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == errc::not_found);
  CHECK(exported{"{"}.read().error().code == errc::damaged);
  CHECK(exported{"[]"}.read().error().code == errc::damaged);
  auto changed = [&](const char* pointer, const json& value) {
    auto result = sample();
    result[json::json_pointer{pointer}] = value;
    return result;
  };
  CHECK(refused(changed("/format", 2)).code == errc::unsupported_version);
  CHECK(refused(changed("/variables/0/dtype", "complex64")).message.find("complex64") != std::string::npos);
  CHECK(refused(changed("/variables/0/dtype", "float64")).message.find("'kernel' is not float32") != std::string::npos);
  CHECK(refused(changed("/variables/0/role", "other")).code == errc::damaged);
  CHECK(refused(changed("/variables/0/role", "optimizer")).code == errc::damaged);
  CHECK(refused(changed("/variables/0/shape", {-1})).code == errc::damaged);
  CHECK(refused(changed("/inputs", json::array())).code == errc::damaged);
  CHECK(refused(changed("/functions/apply", function_of(3, 3)))
            .message.find("'apply' should take 3 tensors and give 2") != std::string::npos);
  CHECK(refused(changed("/functions", json::object())).code == errc::damaged);
}
