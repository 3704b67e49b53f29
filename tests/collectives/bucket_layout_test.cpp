#include <troupe/collectives/bucket_layout.hpp>

#include <algorithm>
#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::collectives;

TEST_CASE("segments start on cache lines and the size is whole lines") {
  const bucket_layout layout{{{dtype::f32, 3}, {dtype::f64, 0}, {dtype::f64, 9}, {dtype::i64, 1}}};
  CHECK(layout.offset_bytes(0) == 0);
  CHECK(layout.offset_bytes(1) == 64);
  CHECK(layout.offset_bytes(2) == 64);
  CHECK(layout.offset_bytes(3) == 192);
  CHECK(layout.size_bytes() == 256);
  CHECK(bucket_layout{}.size_bytes() == 0);
}

TEST_CASE("slices cover the bucket on line boundaries and differ by one line at most") {
  for (std::uint64_t lines : {0u, 1u, 2u, 7u, 8u, 1000u, 1001u})
    for (std::uint32_t world_size = 1; world_size <= 9; ++world_size) {
      const bucket_layout layout{{{dtype::f32, lines * 16}}};
      std::uint64_t next = 0;
      std::uint64_t smallest = UINT64_MAX;
      std::uint64_t largest = 0;
      for (std::uint32_t rank = 0; rank < world_size; ++rank) {
        const auto slice = layout.slice(rank, world_size);
        REQUIRE(slice.first == next);
        REQUIRE(slice.last % alignment_bytes == 0);
        smallest = std::min(smallest, slice.size_bytes());
        largest = std::max(largest, slice.size_bytes());
        next = slice.last;
      }
      REQUIRE(next == layout.size_bytes());
      REQUIRE(largest - smallest <= alignment_bytes);
    }
}
