#include <troupe/serialization/checkpoint/chunk_reuse.hpp>

#include <doctest/doctest.h>

using namespace troupe;
using namespace troupe::serialization;

TEST_CASE("a chunk is written, gets a file when it is unchanged, and is linked until enough checkpoints share it") {
  constexpr auto policy = reuse_policy{1000, 8};
  struct row {
    std::uint64_t length_bytes;
    std::optional<known_chunk> before;
    chunk_place place;
  };
  for (const auto& [length, before, place] : std::vector<row>{
           {1000, std::nullopt, chunk_place::part},
           {1000, known_chunk{8, 0}, chunk_place::part},
           {1000, known_chunk{8, 3}, chunk_place::part},
           {1000, known_chunk{7, 0}, chunk_place::own_file},
           {1000, known_chunk{7, 1}, chunk_place::link},
           {1000, known_chunk{7, 7}, chunk_place::link},
           {1000, known_chunk{7, 8}, chunk_place::own_file},
           {1000, known_chunk{7, 9}, chunk_place::own_file},
           {999, known_chunk{7, 0}, chunk_place::part},
           {999, known_chunk{7, 1}, chunk_place::part},
       }) {
    auto decided = decide_chunk(length, 7, before, policy);
    CAPTURE(decided.reason);
    CHECK(decided.place == place);
    CHECK_FALSE(decided.reason.empty());
    CHECK(decide_chunk(length, 7, before, reuse_policy::none()).place == chunk_place::part);
  }
}

TEST_CASE("chunks are known from the last committed checkpoint of the same plan and part only") {
  auto small = plan_chunks(std::vector<tensor_spec>{{"w", dtype::u8, {9000}}}, 2);
  auto large = plan_chunks(std::vector<tensor_spec>{{"w", dtype::u8, {9001}}}, 2);
  auto memory = chunk_memory{};
  memory.committed("/nothing");
  CHECK(memory.known(small, 0).empty());
  memory.written(small, 1, {{5, 1}});
  CHECK(memory.known(small, 1).empty());
  memory.committed("/first");
  REQUIRE(memory.known(small, 1).size() == 1);
  CHECK(memory.known(small, 1)[0] == known_chunk{5, 1});
  CHECK(memory.directory() == "/first");
  CHECK(memory.known(small, 0).empty());
  CHECK(memory.known(large, 1).empty());
  // Abandoned: another part is begun, and abandoned as well.
  memory.written(small, 1, {{6, 2}});
  memory.begun();
  memory.committed("/second");
  CHECK(memory.known(small, 1)[0] == known_chunk{5, 1});
  CHECK(memory.directory() == "/first");
  memory.written(large, 1, {{7, 0}});
  memory.committed("/third");
  CHECK(memory.known(small, 1).empty());
  CHECK(memory.known(large, 1)[0] == known_chunk{7, 0});
}
