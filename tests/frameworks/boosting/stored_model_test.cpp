#include <troupe/boosting/stored_model.hpp>

#include <troupe/data/column.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/data/preprocessor.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>

using namespace troupe;
using namespace troupe::boosting;

namespace {

/// Predicts the sum of a row's numbers, `outputs` times; NaN for a row of missing values.
loaded_model sums(std::uint64_t features, std::size_t outputs) {
  return {features, [features, outputs](std::span<const float> values, std::uint64_t rows) {
            if (values.size() != rows * features)
              throw exception{errc::user_error, "so many features are not the model's"};
            std::vector<float> result;
            for (std::uint64_t row = 0; row < rows; ++row) {
              float sum = 0;
              for (std::uint64_t i = 0; i < features; ++i)
                sum += values[row * features + i];
              result.insert(result.end(), outputs, sum);
            }
            return result;
          }};
}

data::data_set_ptr rows() {
  return value_or_throw(data::make_table({data::make_column("x", std::vector<float>{1, 2, 3, 4, 5, 6}, {2}),
                                          data::make_column("z", std::vector<float>{10, 20, 30})}));
}

constexpr std::array<std::uint64_t, 3> all{0, 1, 2};

} // namespace

TEST_CASE("a predictor takes the model's columns, and has as many outputs as the model") {
  auto one = make_predictor({.columns = {"z", "x"}}, sums(3, 1));
  CHECK(one->outputs() == std::vector<std::string>{"prediction"});
  CHECK(inference::predict_rows(*one, *rows(), all) == std::vector<float>{13, 27, 41});
  auto two = make_predictor({.columns = {"x"}}, sums(2, 2));
  CHECK(two->outputs() == std::vector<std::string>{"prediction_0", "prediction_1"});
  CHECK(inference::predict_rows(*two, *rows(), all) == std::vector<float>{3, 3, 7, 7, 11, 11});
}

TEST_CASE("unsuitable columns are an error, not a guess") {
  auto absent = inference::predict_rows(*make_predictor({.columns = {"y"}}, sums(1, 1)), *rows(), all);
  REQUIRE(!absent);
  CHECK(absent.error().code == errc::not_found);
  auto fewer = inference::predict_rows(*make_predictor({.columns = {"z"}}, sums(2, 1)), *rows(), all);
  REQUIRE(!fewer);
  CHECK(fewer.error().code == errc::mismatch);
  CHECK(fewer.error().message == "so many features are not the model's");
  // A model that returns fewer numbers per row than at first.
  auto calls = std::make_shared<int>(0);
  auto fickle = loaded_model{1, [calls](std::span<const float>, std::uint64_t count) {
                               return std::vector<float>((*calls)++ == 0 ? 1 : count + 1);
                             }};
  auto more = inference::predict_rows(*make_predictor({.columns = {"z"}}, fickle), *rows(), all);
  REQUIRE(!more);
  CHECK(more.error().code == errc::mismatch);
}

TEST_CASE("a predictor takes categories by their texts, and a preprocessor's columns") {
  auto names = [](std::vector<std::string> all) {
    return std::make_shared<const std::vector<std::string>>(std::move(all));
  };
  auto set = value_or_throw(data::make_table(
      {data::make_column("tree", std::vector<std::int64_t>{0, 1, 2}, {}, names({"elm", "oak", "yew"}))}));
  auto texts = data::category_texts{{"tree", {"ash", "elm", "oak"}}};
  auto plain = make_predictor({.columns = {"tree"}, .categories = data::known_categories{texts}}, sums(1, 1));
  auto found = inference::predict_rows(*plain, *set, all).value();
  CHECK(found[0] == 1);
  CHECK(found[1] == 2);
  CHECK(std::isnan(found[2]));
  // Indices in the training set's categories: ash, oak, and unknown ones.
  auto training = value_or_throw(
      data::make_table({data::make_column("tree", std::vector<std::int64_t>{0, 1}, {}, names({"ash", "oak"}))}));
  auto encoder = data::ordinal_encoder({"tree"}, data::unknown_category::own_category);
  auto alone = data::local_reduction{};
  encoder->fit(*training, alone);
  auto encoded = make_predictor({.columns = {"tree"}, .preprocessor = encoder}, sums(1, 1));
  CHECK(inference::predict_rows(*encoded, *set, all) == std::vector<float>{2, 1, 2});
}

TEST_CASE("categories are stored unchanged in any encoding") {
  auto texts = data::category_texts{{"tree", {"ash", "", "\xc3\xbc", "caf\xe9"}}, {"none", {}}};
  auto kept = json_of(texts).dump();
  CHECK(category_texts_of(nlohmann::json::parse(kept)) == texts);
}
