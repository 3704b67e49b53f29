#include <troupe/data/data_set.hpp>
#include <troupe/data/feature_rows.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

using namespace troupe;

TEST_CASE(
    "features are taken from columns of any number type, in the order of their names; missing values become NaN") {
  auto kinds = std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"x", "y"});
  auto set = value_or_throw(data::make_table(
      {data::make_column("v", std::vector<float>{1, 2, 3, std::numeric_limits<float>::quiet_NaN()}, {2}),
       data::make_column("k", std::vector<std::int64_t>{1, -1}, {}, kinds),
       data::make_column("n", std::vector<std::int64_t>{-1, 5}), data::make_column("d", std::vector<double>{0.5, 0.25}),
       data::make_column("b", std::vector<std::uint8_t>{0, 255})}));
  data::batch samples;
  value_or_throw(set->fetch(std::vector<std::uint64_t>{0, 1}, samples));
  auto names = std::vector<std::string>{"d", "v", "k", "n", "b"};
  auto rows = data::feature_rows(samples, names).value();
  REQUIRE(rows.size() == 12);
  CHECK(std::vector<float>(rows.begin(), rows.begin() + 8) == std::vector<float>{0.5, 1, 2, 1, -1, 0, 0.25, 3});
  CHECK(std::isnan(rows[8]));
  CHECK(std::isnan(rows[9]));
  CHECK(rows[10] == 5);
  CHECK(rows[11] == 255);
  auto absent = data::feature_rows(samples, std::vector<std::string>{"z"});
  CHECK(absent.error().code == errc::not_found);
  CHECK(absent.error().message.find("'z'") != std::string::npos);
}

TEST_CASE("codes are translated to the model's by their texts; an unknown text is missing") {
  auto names = [](std::vector<std::string> all) {
    return std::make_shared<const std::vector<std::string>>(std::move(all));
  };
  auto set = value_or_throw(data::make_table(
      {data::make_column("tree", std::vector<std::int64_t>{0, 1, 2, -1}, {}, names({"elm", "oak", "yew"})),
       data::make_column("other", std::vector<std::int64_t>{1, 0, 1, 0}, {}, names({"a", "b"})),
       data::make_column("n", std::vector<std::int64_t>{3, 2, 1, -1})}));
  data::batch samples;
  value_or_throw(set->fetch(std::vector<std::uint64_t>{0, 1, 2, 3}, samples));
  auto columns = std::vector<std::string>{"tree", "other", "n"};
  // Columns that are not categorical here, or were not in training, are unchanged.
  auto known = data::known_categories{{{"tree", {"ash", "elm", "oak"}}, {"n", {"one", "two"}}}};
  auto rows = data::feature_rows(samples, columns, known).value();
  REQUIRE(rows.size() == 12);
  CHECK(std::vector<float>(rows.begin(), rows.begin() + 6) == std::vector<float>{1, 1, 3, 2, 0, 2});
  CHECK(std::isnan(rows[6]));
  CHECK(rows[8] == 1);
  CHECK(std::isnan(rows[9]));
  CHECK(rows[11] == -1);
  CHECK(data::categories_of(set->columns(), std::vector<std::string>{"n", "tree", "absent"}) ==
        data::category_texts{{"tree", {"elm", "oak", "yew"}}});
}
