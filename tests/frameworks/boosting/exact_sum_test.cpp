#include <troupe/boosting/exact_sum.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <random>
#include <span>
#include <vector>

using troupe::boosting::exact_sum;

namespace {

using words = std::array<std::int64_t, exact_sum::size>;

words words_of(std::span<const double> values) {
  exact_sum sum;
  for (auto each : values)
    sum.add(each);
  words result{};
  std::ranges::copy(sum.words(), result.begin());
  return result;
}

double total(std::initializer_list<double> values) {
  return exact_sum::value_of(words_of(std::vector(values)));
}

} // namespace

TEST_CASE("a sum has no rounding") {
  constexpr auto largest = std::numeric_limits<double>::max();
  constexpr auto smallest = std::numeric_limits<double>::denorm_min();
  CHECK(total({}) == 0);
  CHECK(total({0.5}) == 0.5);
  CHECK(total({-0.1}) == -0.1);
  CHECK(total({1e300, 1, -1e300}) == 1);
  CHECK(total({-1e300, -1, 1e300}) == -1);
  CHECK(total({largest, largest, -largest}) == largest);
  CHECK(total({smallest, smallest}) == 2 * smallest);
  CHECK(total({1, -smallest, -1}) == -smallest);
  CHECK(total({largest, smallest, -largest}) == smallest);
  // The sum of a hundred thousand tenths, each of which is not quite 0.1: rounded once.
  std::vector<double> tenths(100'000, 0.1);
  CHECK(exact_sum::value_of(words_of(tenths)) == 10'000.000000000000555);
}

TEST_CASE("numbers that are not finite are those of an ordinary sum") {
  constexpr auto infinity = std::numeric_limits<double>::infinity();
  CHECK(total({1, infinity, -5}) == infinity);
  CHECK(total({1, -infinity, -5}) == -infinity);
  CHECK(std::isnan(total({infinity, -infinity})));
  CHECK(std::isnan(total({1, std::nan(""), infinity})));
}

TEST_CASE("a sum is the same in any order, and over any number of workers") {
  std::mt19937_64 random{7};
  std::vector<double> values;
  for (int i = 0; i < 2000; ++i)
    values.push_back(std::ldexp(std::uniform_real_distribution{-1.0, 1.0}(random),
                                std::uniform_int_distribution{-900, 900}(random)));
  auto whole = exact_sum::value_of(words_of(values));
  for (std::size_t workers = 1; workers < 8; ++workers) {
    CAPTURE(workers);
    std::ranges::shuffle(values, random);
    words sum{};
    for (std::size_t rank = 0; rank < workers; ++rank) {
      auto first = values.size() * rank / workers;
      auto end = values.size() * (rank + 1) / workers;
      std::ranges::transform(sum, words_of(std::span{values}.subspan(first, end - first)), sum.begin(), std::plus{});
    }
    CHECK(exact_sum::value_of(sum) == whole);
  }
}
