#include <troupe/serialization/checkpoint/part_writer.hpp>

#include "scratch.hpp"

#include <doctest/doctest.h>

#include <algorithm>

using namespace troupe;
using namespace troupe::serialization;

namespace {

/// The bytes of a part's chunks, one after the other.
std::vector<std::byte> bytes_of_part(std::uint32_t part, sample_state& state, const chunk_plan& plan) {
  std::vector<std::byte> result;
  auto views = state.views();
  for (const auto& chunk : plan.chunks_of(part)) {
    auto* first = views[chunk.tensor].data + chunk.tensor_offset_bytes;
    result.insert(result.end(), first, first + chunk.length_bytes);
  }
  return result;
}

} // namespace

TEST_CASE("bytes in pieces of any length make the same part as write_part") {
  for (std::size_t piece : {1u, 7u, 4096u, 5000u, 1u << 20}) {
    CAPTURE(piece);
    auto scratch = scratch_directory{};
    auto state = sample_state{assorted_specs()};
    auto plan = plan_chunks(state.specs(), 3, small_limit_bytes);
    for (std::uint32_t part = 0; part < 3; ++part) {
      auto wanted = write_part(scratch.path() / "whole", part, plan, state.views());
      REQUIRE(wanted);
      auto writer = part_writer::create(scratch.path() / "pieces", part, plan);
      REQUIRE(writer);
      auto bytes = bytes_of_part(part, state, plan);
      CHECK(writer->missing_bytes() == bytes.size());
      for (auto rest = std::span<const std::byte>{bytes}; !rest.empty();) {
        auto next = rest.first(std::min(piece, rest.size()));
        REQUIRE(writer->write(next));
        rest = rest.subspan(next.size());
      }
      auto report = writer->finish();
      REQUIRE(report);
      CHECK(*report == *wanted);
      CHECK(read_file(scratch.path() / "pieces" / report->file) == read_file(scratch.path() / "whole" / wanted->file));
    }
  }
}

TEST_CASE("too few bytes, too many, and an existing part are refused") {
  auto scratch = scratch_directory{};
  auto state = sample_state{assorted_specs()};
  auto plan = plan_chunks(state.specs(), 2, small_limit_bytes);
  auto bytes = bytes_of_part(1, state, plan);
  auto writer = part_writer::create(scratch.path(), 1, plan);
  REQUIRE(writer);
  REQUIRE(writer->write(std::span{bytes}.first(100)));
  CHECK(writer->finish().error().code == errc::invalid_argument);
  CHECK(writer->write(bytes).error().code == errc::invalid_argument);
  CHECK(writer->missing_bytes() == bytes.size() - 100);
  CHECK(part_writer::create(scratch.path(), 1, plan).error().code == errc::already_exists);
  CHECK(part_writer::create(scratch.path(), 2, plan).error().code == errc::invalid_argument);
}
