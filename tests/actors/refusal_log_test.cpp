#include <troupe/actors/decisions/refusal_log.hpp>

#include <doctest/doctest.h>

using namespace troupe::actors;
using namespace std::chrono_literals;

TEST_CASE("refusals are logged up to a number in a minute, and then counted") {
  refusal_log log;
  const auto begin = refusal_log::time_point{};
  for (std::size_t i = 0; i < refusal_log::lines_per_minute; ++i)
    CHECK(log.add("a line", begin + 1s) == "a line");
  CHECK_FALSE(log.add("a line", begin + 2s));
  CHECK_FALSE(log.add("a line", begin + 60s));
  CHECK(log.add("another", begin + 61s) == "another (and 2 more refusals before)");
  CHECK(log.add("a third", begin + 61s) == "a third");
}
