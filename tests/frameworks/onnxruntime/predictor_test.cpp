#include "onnx_file.hpp"

#include <troupe/data/data_set.hpp>
#include <troupe/onnxruntime.hpp>

#include <doctest/doctest.h>
#include <scratch_directory.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::testing;

namespace {

expected<inference::predictor_ptr> load(const std::string& model) {
  return onnxruntime::load_predictor(std::as_bytes(std::span{model}));
}

/// The error of loading.
error refused(const std::string& model) {
  auto found = load(model);
  REQUIRE_FALSE(found);
  return found.error();
}

expected<std::vector<float>> predict(const std::string& model, std::vector<data::column> columns) {
  auto rows = value_or_throw(data::make_table(std::move(columns)));
  std::vector<std::uint64_t> all(rows->size());
  std::iota(all.begin(), all.end(), std::uint64_t{0});
  auto loaded = value_or_throw(load(model));
  return inference::predict_rows(*loaded, *rows, all);
}

std::vector<std::string> outputs_of(const std::string& model) {
  return value_or_throw(load(model))->outputs();
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

} // namespace

TEST_CASE("an ONNX model predicts from the column of its input's name, one row as well as many") {
  CHECK(outputs_of(onnx::linear_model()) ==
        std::vector<std::string>{"scores_0", "scores_1", "probability_0", "probability_1"});
  for (std::size_t rows : {1u, 7u, 1000u}) {
    CAPTURE(rows);
    std::vector<float> x(3 * rows);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = static_cast<float>(i % 11) - 5;
    auto found = value_or_throw(predict(onnx::linear_model(), {data::make_column("x", x, {3})}));
    REQUIRE(found.size() == 4 * rows);
    for (std::size_t row = 0; row < rows; ++row) {
      auto at = [&](std::size_t i) { return x[3 * row + i]; };
      auto first = at(0) + 2 * at(1) + 0.25F;
      auto second = -at(0) + 0.5F * at(1) + 3 * at(2) - 0.5F;
      CHECK(found[4 * row] == doctest::Approx(first));
      CHECK(found[4 * row + 1] == doctest::Approx(second));
      CHECK(found[4 * row + 2] == doctest::Approx(1 / (1 + std::exp(second - first))));
    }
  }
}

TEST_CASE("a model with one input takes all columns of a table, whatever their types") {
  auto together = value_or_throw(
      predict(onnx::linear_model(), {data::make_column("x", std::vector<float>{1, 2, 3, 4, 5, 6}, {3})}));
  auto apart = value_or_throw(predict(onnx::linear_model(), {data::make_column("p", std::vector<double>{1, 4}),
                                                             data::make_column("q", std::vector<std::int64_t>{2, 5}),
                                                             data::make_column("r", std::vector<std::uint8_t>{3, 6})}));
  CHECK(apart == together);
}

TEST_CASE("several inputs are found by name, and numbers are converted to their types") {
  auto sums =
      value_or_throw(predict(onnx::sum_model(), {data::make_column("b", std::vector<double>{1, 2, 3}),
                                                 data::make_column("a", std::vector<std::int8_t>{10, 20, 30})}));
  CHECK(sums == std::vector<float>{11, 22, 33});
  auto missing = predict(onnx::sum_model(), {data::make_column("a", std::vector<float>{1}),
                                             data::make_column("c", std::vector<float>{1})});
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == errc::not_found);
  CHECK(contains(missing.error().message, "takes 'b', and the data has no such column, but 'a', 'c'"));
}

TEST_CASE("a model for one row at a time predicts for many, from images without a channel") {
  for (std::int64_t rows : {1, -1}) {
    auto found = value_or_throw(
        predict(onnx::image_model(rows),
                {data::make_column("image", std::vector<std::uint8_t>{1, 2, 3, 4, 5, 6, 7, 8}, {2, 2})}));
    CHECK(found == std::vector<float>{4321, 8765});
  }
}

TEST_CASE("what a model cannot be used for is said before a row is predicted") {
  CHECK(refused("no model").code == errc::damaged);
  CHECK(refused("").code == errc::damaged);
  auto whole = onnx::linear_model();
  CHECK(refused(whole.substr(0, whole.size() / 2)).code == errc::damaged);
  auto fixed = refused(onnx::image_model(4));
  CHECK(fixed.code == errc::mismatch);
  CHECK(contains(fixed.message, "[4, 1, 2, 2]: its first dimension must be free, or 1"));
  auto free = refused(
      onnx::model{}.input("x", onnx::f32, {-1, -1}).node("Abs", {"x"}, "y").output("y", onnx::f32, {-1, -1}).bytes());
  CHECK(contains(free.message, "output 'y'"));
  CHECK(contains(free.message, "must be known before it is run"));
  auto unknown = refused(
      onnx::model{}.input("x", onnx::f32, {-1}).node("Frobnicate", {"x"}, "y").output("y", onnx::f32, {-1}).bytes());
  CHECK(contains(unknown.message, "Frobnicate"));
}

TEST_CASE("rows with another number of values than the model takes are refused") {
  auto narrow = predict(onnx::linear_model(), {data::make_column("x", std::vector<float>{1, 2}, {2})});
  REQUIRE_FALSE(narrow);
  CHECK(narrow.error().code == errc::mismatch);
  CHECK(contains(narrow.error().message, "has the shape [-1, 3], and a row of the data has 2 numbers in column 'x'"));
}

TEST_CASE("a model's file becomes a checkpoint, once for each content") {
  scratch_directory here;
  const auto file = here.path() / "model.onnx";
  const auto write = [&](const std::string& bytes) { std::ofstream{file, std::ios::binary} << bytes; };
  write(onnx::linear_model());
  const auto first = value_or_throw(onnxruntime::store_model(file, here.path() / "models"));
  CHECK(value_or_throw(onnxruntime::store_model(file, here.path() / "models")) == first);
  write(onnx::sum_model());
  const auto second = value_or_throw(onnxruntime::store_model(file, here.path() / "models"));
  CHECK(second != first);
  const auto stored = value_or_throw(serialization::checkpoint::open(first));
  const auto description = value_or_throw(onnxruntime::describe_model(stored));
  REQUIRE(description.inputs.size() == 1);
  CHECK(description.inputs[0].name == "x");
  CHECK(description.inputs[0].type == dtype::f32);
  CHECK(description.inputs[0].row_shape == std::vector<std::int64_t>{3});
  CHECK(description.outputs.size() == 2);
  const auto restored = value_or_throw(onnxruntime::load_predictor(stored));
  CHECK(restored->outputs() == outputs_of(onnx::linear_model()));
  CHECK(restored->library().starts_with("ONNX Runtime 1."));
  const auto missing = onnxruntime::store_model(here.path() / "none.onnx", here.path() / "models");
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == errc::not_found);
  // Nothing but the two checkpoints.
  CHECK(std::distance(std::filesystem::directory_iterator{here.path() / "models"}, {}) == 2);
}

TEST_CASE("a missing library is said with how to get it") {
  auto found = onnxruntime::find_library("/nowhere/libonnxruntime.so");
  REQUIRE_FALSE(found);
  CHECK(contains(found.error().message, "/nowhere/libonnxruntime.so is not a file"));
}
