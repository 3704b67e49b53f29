#include <troupe/serialization/checkpoint/retention.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>

using namespace troupe;
using namespace troupe::serialization;

namespace {

constexpr auto nan = std::numeric_limits<double>::quiet_NaN();
constexpr auto infinity = std::numeric_limits<double>::infinity();
constexpr auto none = -12345.0;

/// Steps 1, 2, ... with these losses; `none` means without the metric.
std::vector<retention_candidate> with_losses(const std::vector<double>& losses) {
  auto result = std::vector<retention_candidate>{};
  for (std::size_t i = 0; i < losses.size(); ++i) {
    auto& each = result.emplace_back(retention_candidate{{i + 1}, {{"accuracy", 0.5}}});
    if (losses[i] != none)
      each.metrics["loss"] = losses[i];
  }
  return result;
}

std::vector<std::uint64_t> staying(const std::vector<retention_candidate>& candidates, const retention_policy& policy) {
  auto result = std::vector<std::uint64_t>{};
  for (const auto& each : decide_retention(candidates, policy))
    if (each.stays)
      result.push_back(each.step.value);
  return result;
}

using steps = std::vector<std::uint64_t>;

} // namespace

TEST_CASE("the latest and the best are kept") {
  struct row {
    std::vector<double> losses;
    std::size_t num_to_keep;
    steps by_min;
    steps by_max;
  };
  const auto rows = std::vector<row>{
      {{}, 1, {}, {}},
      {{3}, 1, {1}, {1}},
      {{3}, 5, {1}, {1}},
      {{3, 2, 1}, 1, {3}, {1, 3}},
      {{1, 2, 3}, 1, {1, 3}, {3}},
      {{2, 1, 3, 2}, 1, {2, 4}, {3, 4}},
      {{2, 1, 3, 2}, 2, {2, 3, 4}, {3, 4}},
      {{2, 1, 3, 2}, 4, {1, 2, 3, 4}, {1, 2, 3, 4}},
      // Of equal ones the newer is best.
      {{1, 1, 2, 2, 1.5}, 1, {2, 5}, {4, 5}},
      {{7, 7, 7}, 1, {3}, {3}},
      // NaN is never the best.
      {{nan, 5, 6}, 1, {2, 3}, {3}},
      {{none, 5, 4, none}, 1, {3, 4}, {2, 4}},
      {{5, nan, nan}, 1, {1, 3}, {1, 3}},
      {{nan, none, nan}, 1, {3}, {3}},
      {{none, nan, none}, 2, {2, 3}, {2, 3}},
      {{-infinity, 0, infinity, 1}, 1, {1, 4}, {3, 4}},
      {{-0.0, 0.0, 1}, 1, {2, 3}, {3}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.losses.size());
    CAPTURE(&row - rows.data());
    auto candidates = with_losses(row.losses);
    CHECK(staying(candidates, {row.num_to_keep, "loss", score_mode::min}) == row.by_min);
    CHECK(staying(candidates, {row.num_to_keep, "loss", score_mode::max}) == row.by_max);
    // Without a score, or with one that no checkpoint has: only the latest.
    CHECK(staying(candidates, {row.num_to_keep}) == staying(candidates, {row.num_to_keep, "absent"}));
    CHECK(staying(candidates, {row.num_to_keep}).size() == std::min(row.num_to_keep, row.losses.size()));
    // In any order.
    std::ranges::reverse(candidates);
    CHECK(staying(candidates, {row.num_to_keep, "loss", score_mode::min}) == row.by_min);
  }
}

TEST_CASE("as many of the best are kept as are asked for") {
  const auto candidates = with_losses({4, 1, 2, nan, 3, 5});
  CHECK(staying(candidates, {1, "loss", score_mode::min, 1}) == steps{2, 6});
  CHECK(staying(candidates, {1, "loss", score_mode::min, 3}) == steps{2, 3, 5, 6});
  CHECK(staying(candidates, {1, "loss", score_mode::max, 2}) == steps{1, 6});
  CHECK(staying(candidates, {1, "loss", score_mode::min, 100}) == steps{1, 2, 3, 5, 6});
  CHECK(decide_retention(candidates, {1, "loss", score_mode::min, 3})[1].reason == "one of the 3 best by loss: 1");
  CHECK(rank_by_score(candidates, {1, "loss", score_mode::min}) == std::vector<step_id>{{2}, {3}, {5}, {1}, {6}});
  CHECK(rank_by_score(candidates, {1}).empty());
}

TEST_CASE("each decision has a reason") {
  auto decisions = decide_retention(with_losses({0.25, 3, 2, 1}), {2, "loss", score_mode::min});
  auto expectation = std::vector<retention_decision>{{{1}, true, "the best by loss: 0.25"},
                                                     {{2}, false, "older than the 2 latest"},
                                                     {{3}, true, "one of the 2 latest"},
                                                     {{4}, true, "the latest"}};
  CHECK(decisions == expectation);
}
