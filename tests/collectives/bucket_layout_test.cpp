#include <troupe/collectives/bucket_layout.hpp>

#include <algorithm>
#include <doctest/doctest.h>
#include <vector>

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

TEST_CASE("sums of 16-bit floats are f32, and lines become pairs of lines") {
  const bucket_layout layout{{{dtype::f32, 3}, {dtype::f16, 33}, {dtype::bf16, 0}, {dtype::i64, 1}, {dtype::bf16, 1}}};
  const auto sums = layout.sums();
  CHECK(sums.segments() == std::vector<bucket_segment>{
                               {dtype::f32, 3}, {dtype::f32, 64}, {dtype::f32, 0}, {dtype::i64, 1}, {dtype::f32, 32}});
  CHECK(sums.size_bytes() == 64 + 256 + 64 + 128);
  CHECK(sums.sums() == sums);
  CHECK(bucket_layout{}.sums() == bucket_layout{});
}

TEST_CASE("every element maps to its place in the sums") {
  const bucket_layout layout{{{dtype::f32, 3}, {dtype::f16, 33}, {dtype::bf16, 0}, {dtype::i64, 1}, {dtype::bf16, 1}}};
  const auto sums = layout.sums();
  for (std::size_t i = 0; i <= layout.segments().size(); ++i)
    CHECK(layout.offset_in_sums(layout.offset_bytes(i)) == sums.offset_bytes(i));
  CHECK(layout.offset_in_sums(8) == 8);
  CHECK(layout.offset_in_sums(64 + 2 * 5) == 64 + 4 * 5);
  CHECK(layout.offset_in_sums(64 + 2 * 63) == 64 + 4 * 63);
  CHECK(layout.offset_in_sums(192 + 16) == 320 + 16);
  CHECK(layout.offset_in_sums(256 + 2) == 384 + 4);
  CHECK(bucket_layout{}.offset_in_sums(0) == 0);
  for (std::uint64_t at = 0; at <= layout.size_bytes(); at += alignment_bytes)
    CHECK(layout.offset_in_sums(at) % alignment_bytes == 0);
}

TEST_CASE("offsets belong to the segment with bytes there") {
  const bucket_layout layout{{{dtype::f32, 3}, {dtype::f64, 0}, {dtype::f64, 9}, {dtype::u8, 0}}};
  CHECK(layout.segment_at(0) == 0);
  CHECK(layout.segment_at(63) == 0);
  CHECK(layout.segment_at(64) == 2);
  CHECK(layout.segment_at(191) == 2);
  CHECK(layout.segment_at(192) == 4);
  CHECK(bucket_layout{}.segment_at(0) == 0);
}

TEST_CASE("a part has the bytes of its range, and its sums are the part of the sums") {
  const bucket_layout layout{{{dtype::f32, 40}, {dtype::f16, 100}, {dtype::u8, 0}, {dtype::i64, 9}, {dtype::u8, 65}}};
  REQUIRE(layout.size_bytes() == 192 + 256 + 128 + 128);
  CHECK(layout.part({64, 256}).segments() == std::vector<bucket_segment>{{dtype::f32, 32}, {dtype::f16, 32}});
  CHECK(layout.part({448, 704}).segments() == std::vector<bucket_segment>{{dtype::i64, 16}, {dtype::u8, 128}});
  CHECK(layout.part({128, 128}) == bucket_layout{});
  for (std::uint64_t first = 0; first <= layout.size_bytes(); first += alignment_bytes)
    for (auto last = first; last <= layout.size_bytes(); last += alignment_bytes) {
      const auto part = layout.part({first, last});
      REQUIRE(part.size_bytes() == last - first);
      const byte_range in_sums{layout.offset_in_sums(first), layout.offset_in_sums(last)};
      REQUIRE(part.sums() == layout.sums().part(in_sums));
      for (auto at = first; at <= last; at += alignment_bytes)
        REQUIRE(part.offset_in_sums(at - first) == layout.offset_in_sums(at) - in_sums.first);
    }
}
