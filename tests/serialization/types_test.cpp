#include <troupe/types.hpp>

#include <doctest/doctest.h>

#include <fmt/format.h>

using namespace troupe;

TEST_CASE("ids print as their values, with the values' format specifications") {
  CHECK(fmt::format("{} {} {} {} {} {}", run_id{"4f"}, generation_id{1}, step_id{1ull << 40}, rank_id{2}, worker_id{3},
                    shard_id{4}) == "4f 1 1099511627776 2 3 4");
  CHECK(fmt::format("step-{:08}, {:>4}, {:.2}", step_id{20}, rank_id{7}, run_id{"4f00"}) == "step-00000020,    7, 4f");
}
