#include <gpt/schedule.hpp>

#include <doctest/doctest.h>

using namespace gpt;

TEST_CASE("the learning rate increases, decreases along half a cosine, and stays constant") {
  auto how = schedule{1e-3, 1e-4, 100, 2000};
  CHECK(learning_rate(how, 1) == doctest::Approx(1e-3 / 101));
  CHECK(learning_rate(how, 100) == doctest::Approx(1e-3 * 100 / 101));
  CHECK(learning_rate(how, 101) == doctest::Approx(1e-3));
  // Half-way down.
  CHECK(learning_rate(how, 1051) == doctest::Approx(5.5e-4));
  CHECK(learning_rate(how, 2001) == 1e-4);
  CHECK(learning_rate(how, 1'000'000) == 1e-4);
  for (std::uint64_t step = 2; step <= 2001; ++step)
    CHECK((learning_rate(how, step) > learning_rate(how, step - 1)) == (step <= 101));
}

TEST_CASE("a schedule may be all warm-up or have none") {
  CHECK(learning_rate({1, 0.1, 10, 10}, 10) == doctest::Approx(10.0 / 11));
  CHECK(learning_rate({1, 0.1, 10, 10}, 11) == 0.1);
  CHECK(learning_rate({1, 0.1, 0, 10}, 1) == 1);
}
