#include <troupe/data/exact_reduction.hpp>
#include <troupe/data/labelled_table.hpp>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <string>
#include <vector>

using namespace troupe;
using namespace troupe::data;

namespace {

constexpr auto people = "id,age,income,city,paid\n"
                        "1,30,1000.5,Bonn,yes\n"
                        "2,NA,2000,Ulm,no\n"
                        "3,50,,Bonn,yes\n"
                        "4,41,30000000,\"Aa\"\"chen\",no\n";

std::string error_of(const std::string& text, const table_options& options) {
  auto result = parse_table(text, "people.csv", options);
  REQUIRE(!result);
  return result.error().message;
}

std::vector<float> inputs_of(const labelled_table& table) {
  const auto how = make_inputs(table);
  auto alone = local_reduction{};
  how->fit(*table.samples, alone);
  const auto set = value_or_throw(transformed(table.samples, how));
  std::vector<std::uint64_t> samples;
  for (std::uint64_t i = 0; i < set->size(); ++i)
    samples.push_back(i);
  batch all;
  REQUIRE(set->fetch(samples, all));
  const auto values = all.values<float>("inputs");
  return {values.begin(), values.end()};
}

TEST_CASE("columns of numbers and of texts are told apart, also where values are missing") {
  auto table = value_or_throw(parse_table(people, "people.csv", {.label = "paid", .ignored = {"id"}}));
  CHECK(table.numbers == std::vector<std::string>{"age", "income"});
  CHECK(table.categories == std::vector<std::string>{"city"});
  CHECK(table.has_classes());
  REQUIRE(table.samples->columns().size() == 4);
  CHECK(table.samples->size() == 4);
  CHECK(table.samples->columns()[0].type == dtype::f32);
  // 30000000 is beyond what f32 represents exactly.
  CHECK(table.samples->columns()[1].type == dtype::f64);
  CHECK(*table.samples->columns()[2].categories == std::vector<std::string>{"Aa\"chen", "Bonn", "Ulm"});
  CHECK(table.samples->columns()[3].name == "label");
  CHECK(*table.samples->columns()[3].categories == std::vector<std::string>{"no", "yes"});

  // Two numbers, three cities and one for unknown ones; missing numbers are the mean, which is scaled to 0.
  const auto inputs = inputs_of(table);
  REQUIRE(inputs.size() == 4 * 6);
  CHECK(std::abs(inputs[6]) < 1e-6f);
  CHECK(std::vector<float>(inputs.begin() + 2, inputs.begin() + 6) == std::vector<float>{0, 1, 0, 0});
  for (auto x : inputs)
    CHECK(std::isfinite(x));
}

TEST_CASE("what was inferred reads another file of the same form, with the same categories") {
  auto table = value_or_throw(parse_table(people, "people.csv", {.label = "paid", .ignored = {"id"}}));
  auto other = value_or_throw(parse_csv("id,age,income,city,paid\n9,NA,,Ulm,yes\n", "other.csv", table.format));
  auto set = value_or_throw(make_table(other));
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(set->columns()[i] == table.samples->columns()[i]);
}

TEST_CASE("a label is classes or an amount") {
  const auto kind_of = [](const std::string& values, label_kind kind = label_kind::inferred) {
    return value_or_throw(parse_table("x,y\n" + values, "t.csv", {.label = "y", .kind = kind})).has_classes();
  };
  CHECK(kind_of("1,a\n2,b\n"));
  CHECK(kind_of("1,0\n2,1\n"));
  CHECK_FALSE(kind_of("1,0.5\n2,1\n"));
  CHECK_FALSE(kind_of("1,0\n2,1\n", label_kind::amounts));
  CHECK(kind_of("1,0.5\n2,1\n", label_kind::classes));
  std::string many;
  for (auto i = 0; i < 21; ++i)
    many += fmt::format("1,{}\n", i);
  CHECK_FALSE(kind_of(many));
}

TEST_CASE("a label that is an amount has a scaler of its own, which turns predictions back") {
  auto table = value_or_throw(parse_table("x,y\n1,10.5\n2,20.5\n3,30.5\n", "t.csv", {.label = "y"}));
  const auto how = make_label_scaler(table);
  auto alone = local_reduction{};
  how->fit(*table.samples, alone);
  batch all;
  REQUIRE(value_or_throw(transformed(table.samples, how))->fetch(std::vector<std::uint64_t>{0, 1, 2}, all));
  const auto labels = all.values<float>("label");
  CHECK(labels[0] == doctest::Approx(-1.2247).epsilon(1e-4));
  CHECK(std::abs(labels[1]) < 1e-6f);
  REQUIRE(how->inverse(all));
  CHECK(all.values<float>("label")[2] == doctest::Approx(30.5));
  CHECK(make_label_scaler(value_or_throw(parse_table("x,y\n1,a\n2,b\n", "t.csv", {.label = "y"}))) == nullptr);
}

TEST_CASE("large numbers keep their differences, with and without a fraction, and where some are missing") {
  std::string small = "x,z,y\n,1,a\n";
  std::string large = small;
  for (auto i = 0; i < 40; ++i) {
    small += fmt::format("{},{}.5,b\n", i, i);
    large += fmt::format("{},{}.5,b\n", 1'700'000'000 + i, i);
  }
  const auto near = inputs_of(value_or_throw(parse_table(small, "t.csv", {.label = "y"})));
  const auto far = inputs_of(value_or_throw(parse_table(large, "t.csv", {.label = "y"})));
  REQUIRE(near.size() == far.size());
  for (std::size_t i = 0; i < near.size(); ++i)
    CHECK(near[i] == doctest::Approx(far[i]).epsilon(1e-5).scale(1));
  const auto types = [](const std::string& values) {
    return value_or_throw(parse_table("x,y\n" + values, "t.csv", {.label = "y"})).samples->columns()[0].type;
  };
  CHECK(types("1700000000.5,a\n2,b\n") == dtype::f64);
  CHECK(types("1e-50,a\n2,b\n") == dtype::f64);
  CHECK(types("1e39,a\n0,b\n") == dtype::f64);
  CHECK(types("1.5,a\n0,b\n") == dtype::f32);
}

TEST_CASE("what means a missing number is a text in other columns") {
  const auto table = value_or_throw(parse_table("age,country,y\nNA,NA,a\n2,DE,b\n3,NA,a\n", "t.csv", {.label = "y"}));
  CHECK(*table.samples->columns()[1].categories == std::vector<std::string>{"DE", "NA"});
  CHECK(value_or_throw(parse_table("x,y\nnone,none\n1,a\n", "t.csv", {.label = "y"})).has_classes());
}

TEST_CASE("empty fields are missing, whatever other texts mean that") {
  const auto table =
      value_or_throw(parse_table("age,y\n-,a\n,b\n3,a\n", "t.csv", {.label = "y", .format = {.missing_texts = {"-"}}}));
  CHECK(table.numbers == std::vector<std::string>{"age"});
}

TEST_CASE("columns can be declared as categories, and a damaged number is named") {
  std::string text = "code,y\n";
  for (auto i = 0; i < 100; ++i)
    text += fmt::format("{},{}\n", i % 7, i % 2 == 0 ? "a" : "b");
  CHECK(value_or_throw(parse_table(text, "t.csv", {.label = "y"})).numbers.size() == 1);
  CHECK(value_or_throw(parse_table(text, "t.csv", {.label = "y", .categories = {"code"}})).categories.size() == 1);
  text += "3O,a\n";
  CHECK(error_of(text, {.label = "y"}) ==
        "people.csv:102: column 'code': '3O' is no number, and nearly all others are: mend the file, or declare the "
        "column in table_options::categories");
  CHECK(value_or_throw(parse_table(text, "t.csv", {.label = "y", .categories = {"code"}})).categories.size() == 1);
  CHECK(error_of(text, {.label = "y", .categories = {"size"}}).find("no column 'size' (table_options::categories)") !=
        std::string::npos);
}

TEST_CASE("there is a heartbeat while a table is looked through") {
  auto beats = 0;
  CHECK(parse_table(people, "t.csv", {.label = "paid", .ignored = {"id"}, .heartbeat = [&] { ++beats; }}));
  CHECK(beats == 1);
}

TEST_CASE("what cannot be inferred is named, with what to do") {
  CHECK(error_of(people, {.label = "paid", .ignored = {"shoe"}}) ==
        "people.csv: no column 'shoe' (table_options::ignored): the file has id, age, income, city, paid");
  CHECK(error_of(people, {.label = "size"}).starts_with("people.csv: no column 'size' to learn"));
  CHECK(error_of(people, {}).starts_with("people.csv: no column '' to learn"));
  CHECK(error_of("x,y\n1,\n2,a\n", {.label = "y"}) ==
        "people.csv: the column to learn, 'y', is missing in some rows: remove these rows");
  CHECK(error_of("x,y\n1,2.5\n2,NA\n", {.label = "y"}).find("is missing in some rows") != std::string::npos);
  CHECK(error_of("x,y\n,a\n,b\n", {.label = "y"}) ==
        "people.csv: column 'x' has no values: leave it out (table_options::ignored)");
  CHECK(error_of("y\na\nb\n", {.label = "y"}) == "people.csv: no column is left to learn from");
  CHECK(error_of("x,y\n1,a\n2,b\n", {.label = "y", .kind = label_kind::amounts}).find("holds texts") !=
        std::string::npos);
  CHECK(error_of("x,y\n1,a\n2,b\n", {.label = "y", .format = {.columns = {{"x"}}}}).find("use read_csv") !=
        std::string::npos);
  // As read_csv says it.
  CHECK(error_of("x,y\n1,a\n2\n", {.label = "y"}) == "people.csv:3: 1 fields, expected 2 as in the first row");
  CHECK(error_of("", {.label = "y"}) == "people.csv: it has no rows");
  CHECK(error_of("x,y\n", {.label = "y"}) == "people.csv: it has no rows");
  CHECK(error_of("label,y\n1,a\n2,b\n", {.label = "y"}).starts_with("people.csv: column 'label' is not the column"));
  CHECK(error_of("x,y\n1,1\n2,1.0\n", {.label = "y"}).find("has '1' and '1.0', which are one number") !=
        std::string::npos);
}

TEST_CASE("names are no categories") {
  std::string text = "name,y\n";
  for (auto i = 0; i < 60; ++i)
    text += fmt::format("person {},{}\n", i, i % 2 == 0 ? "a" : "b");
  CHECK(error_of(text, {.label = "y"}).find("column 'name' has 60 different texts, nearly one for each row") !=
        std::string::npos);
  CHECK(error_of(text, {.label = "name"}).find("too many for classes") != std::string::npos);
}

TEST_CASE("a file without a header has columns by number") {
  auto table = value_or_throw(
      parse_table("1;a;x\n2;b;y\n", "t.csv", {.label = "2", .format = {.delimiter = ';', .header = false}}));
  CHECK(table.numbers == std::vector<std::string>{"0"});
  CHECK(table.categories == std::vector<std::string>{"1"});
}

} // namespace
