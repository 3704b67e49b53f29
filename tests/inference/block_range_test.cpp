#include "block_range.hpp"

#include <doctest/doctest.h>

#include <initializer_list>

using namespace troupe::inference;

TEST_CASE("the shards of all blocks contain each row once, in order") {
  for (std::uint64_t rows : {1u, 2u, 7u, 8u, 9u, 64u, 1001u})
    for (std::uint64_t block_rows : {1u, 3u, 8u, 64u, 5000u})
      for (std::uint32_t shards : {1u, 2u, 3u, 8u}) {
        CAPTURE(rows);
        CAPTURE(block_rows);
        CAPTURE(shards);
        std::uint64_t next = 0;
        auto blocks = block_count(rows, block_rows);
        for (std::uint64_t b = 0; b < blocks; ++b) {
          auto block = rows_of_block(rows, block_rows, b);
          CHECK(block.first == next);
          CHECK(block.size() > 0);
          CHECK(block.size() <= block_rows);
          for (std::uint32_t v = 0; v < shards; ++v) {
            auto shard = rows_of_shard(block, shards, v);
            CHECK(shard.first == next);
            next = shard.last;
          }
          CHECK(next == block.last);
        }
        CHECK(next == rows);
        CHECK(rows_of_block(rows, block_rows, blocks).size() == 0);
      }
}

TEST_CASE("no rows make no blocks") {
  CHECK(block_count(0, 8) == 0);
  CHECK(rows_of_block(0, 8, 0).size() == 0);
}
