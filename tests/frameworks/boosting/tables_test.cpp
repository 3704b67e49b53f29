#include <troupe/boosting/tables.hpp>

#include <troupe/data/column.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cmath>

using namespace troupe;
using namespace troupe::boosting;

namespace {

data::data_set_ptr rows() {
  return value_or_throw(data::make_table({data::make_column("pair", std::vector<float>{1, 2, 3, 4, 5, 6}, {2}),
                                          data::make_column("single", std::vector<std::int32_t>{7, 8, 9}),
                                          data::make_column("y", std::vector<double>{0.5, 1.5, 2.5}),
                                          data::make_column("weight", std::vector<float>{10, 20, 30})}));
}

settings columns() {
  return {.parameters = {}, .features = {"single", "pair"}, .label = "y", .weight = {}};
}

template <class Call>
std::string refused(Call call) {
  try {
    call();
  } catch (const exception& x) {
    return x.reason().message;
  }
  return {};
}

} // namespace

TEST_CASE("a table has the features, labels and weights of the requested rows in order") {
  auto how = columns();
  std::array<std::uint64_t, 2> numbers{2, 0};
  auto plain = fetch_table(how, *rows(), numbers);
  CHECK(plain.rows == 2);
  CHECK(plain.features == std::vector<float>{9, 5, 6, 7, 1, 2});
  CHECK(plain.label == std::vector<float>{2.5, 0.5});
  CHECK(plain.weight.empty());
  how.weight = "weight";
  CHECK(fetch_table(how, *rows(), numbers).weight == std::vector<float>{30, 10});
}

TEST_CASE("a long table is fetched in parts with a callback after each, and uses the known categories") {
  constexpr std::uint64_t count = 140'000;
  std::vector<std::int64_t> codes(count);
  std::vector<float> y(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<std::int64_t>(i % 2);
    y[i] = static_cast<float>(i);
  }
  auto names = std::make_shared<const std::vector<std::string>>(std::vector<std::string>{"elm", "oak"});
  auto set = value_or_throw(data::make_table(
      {data::make_column("tree", std::move(codes), {}, std::move(names)), data::make_column("y", std::move(y))}));
  auto how = settings{.parameters = {}, .features = {"tree", "y"}, .label = "y", .weight = "y"};
  auto known = data::known_categories{{{"tree", {"ash", "elm", "oak"}}}};
  int parts = 0;
  auto table = fetch_table(how, *set, rows_of_rank(count, 0, 1), known, [&parts] { ++parts; });
  CHECK(parts == 3);
  REQUIRE(table.rows == count);
  REQUIRE(table.features.size() == 2 * count);
  CHECK(table.weight == table.label);
  for (std::uint64_t i = 0; i < count; ++i) {
    REQUIRE(table.features[2 * i] == (i % 2 == 0 ? 1 : 2));
    REQUIRE(table.features[2 * i + 1] == static_cast<float>(i));
    REQUIRE(table.label[i] == static_cast<float>(i));
  }
}

TEST_CASE("a missing column, or one without single numbers where needed, is named") {
  auto message = [](auto change) {
    auto how = columns();
    change(how);
    std::array<std::uint64_t, 2> numbers{0, 1};
    return refused([&] { (void)fetch_table(how, *rows(), numbers); });
  };
  CHECK(message([](settings& s) { s.label = "pair"; }) == "column 'pair' does not hold single numbers");
  CHECK(message([](settings& s) { s.weight = "pair"; }) == "column 'pair' does not hold single numbers");
  CHECK(message([](settings& s) { s.features.emplace_back("z"); }).find("no column 'z'") != std::string::npos);
}

TEST_CASE("every row belongs to one rank, in the order of ranks, and sizes differ by at most one") {
  for (std::uint64_t count : {0, 1, 7, 100})
    for (std::uint32_t ranks : {1, 2, 3, 8}) {
      std::vector<std::uint64_t> all;
      std::size_t least = count;
      std::size_t most = 0;
      for (std::uint32_t rank = 0; rank < ranks; ++rank) {
        auto mine = rows_of_rank(count, rank, ranks);
        least = std::min(least, mine.size());
        most = std::max(most, mine.size());
        all.insert(all.end(), mine.begin(), mine.end());
      }
      CHECK(most - least <= 1);
      REQUIRE(all.size() == count);
      for (std::uint64_t i = 0; i < count; ++i)
        CHECK(all[i] == i);
    }
}

TEST_CASE("a data set with fewer rows than workers is refused with both numbers") {
  auto made_up = tree_library{"Made Up", "madeup"};
  CHECK(refused([&] { require_rows(made_up, *rows(), 3); }).empty());
  CHECK(refused([&] { require_rows(made_up, *rows(), 4); }) ==
        "a data set of 3 samples for 4 workers: each of Made Up's workers needs at least one");
}
