#include <troupe/serialization/checkpoint/chunk_plan.hpp>

#include "scratch.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace troupe;
using namespace troupe::serialization;

namespace {

/// Checks all guarantees of a plan.
void check_plan(const std::vector<tensor_spec>& specs, std::uint32_t parts, std::uint64_t limit_bytes) {
  CAPTURE(specs.size());
  CAPTURE(parts);
  CAPTURE(limit_bytes);
  auto plan = plan_chunks(specs, parts, limit_bytes);
  CHECK(plan == plan_chunks(specs, parts, limit_bytes));
  REQUIRE(plan.part_sizes_bytes.size() == parts);
  auto done = std::vector<std::uint64_t>(specs.size());
  auto counts = std::vector<std::uint32_t>(specs.size());
  auto ends = std::vector<std::uint64_t>(parts);
  for (const auto& chunk : plan.chunks) {
    CHECK(chunk.tensor_offset_bytes == done[chunk.tensor]);
    CHECK(chunk.chunk == counts[chunk.tensor]++);
    CHECK(chunk.length_bytes > 0);
    CHECK(chunk.length_bytes <= limit_bytes);
    CHECK(chunk.offset_bytes % chunk_alignment_bytes == 0);
    CHECK(chunk.offset_bytes >= ends[chunk.part]);
    done[chunk.tensor] += chunk.length_bytes;
    ends[chunk.part] = chunk.offset_bytes + chunk.length_bytes;
    CHECK(ends[chunk.part] <= plan.part_sizes_bytes[chunk.part]);
  }
  for (std::size_t i = 0; i < specs.size(); ++i)
    CHECK(done[i] == specs[i].size_bytes());
  auto [least, most] = std::ranges::minmax(plan.part_sizes_bytes);
  CHECK(most - least <= chunk_alignment_bytes);
  auto listed = std::size_t{0};
  for (std::uint32_t part = 0; part < parts; ++part)
    listed += plan.chunks_of(part).size();
  CHECK(listed == plan.chunks.size());
}

} // namespace

TEST_CASE("a plan covers every byte once, in pages, balanced over its parts") {
  for (auto parts : {1u, 2u, 3u, 7u, 64u})
    for (auto limit : {std::uint64_t{4096}, small_limit_bytes, max_chunk_bytes}) {
      check_plan(assorted_specs(), parts, limit);
      check_plan({}, parts, limit);
      check_plan({{"empty", dtype::f32, {0}}}, parts, limit);
      check_plan({{"scalar", dtype::f64, {}}}, parts, limit);
      check_plan({{"a", dtype::u8, {4096}}, {"b", dtype::u8, {4097}}, {"c", dtype::u8, {4095}}}, parts, limit);
    }
}

TEST_CASE("a plan of terabytes needs no memory for them") {
  auto plan = plan_chunks(std::vector<tensor_spec>{{"big", dtype::f32, {1u << 20, 1u << 20}}}, 1000);
  CHECK(plan.chunks.size() >= (std::uint64_t{4} << 40) / max_chunk_bytes);
  CHECK(plan.chunks.size() <= (std::uint64_t{4} << 40) / max_chunk_bytes + 1000);
}

TEST_CASE("one huge tensor is shared by all parts") {
  auto plan = plan_chunks(std::vector<tensor_spec>{{"big", dtype::u8, {65 << 20}}}, 5);
  for (std::uint32_t part = 0; part < 5; ++part)
    CHECK(plan.chunks_of(part).size() == 1);
}

TEST_CASE("a plan without parts or with an impossible limit is refused") {
  CHECK_THROWS_AS((void)plan_chunks({}, 0), exception);
  CHECK_THROWS_AS((void)plan_chunks({}, 1, 0), exception);
  CHECK_THROWS_AS((void)plan_chunks({}, 1, 4095), exception);
  CHECK_THROWS_AS((void)plan_chunks({}, 1, 2 * max_chunk_bytes), exception);
}
