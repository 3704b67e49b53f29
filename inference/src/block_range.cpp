#include "block_range.hpp"

#include <algorithm>

namespace troupe::inference {

std::uint64_t block_count(std::uint64_t rows, std::uint64_t block_rows) noexcept {
  return rows / block_rows + (rows % block_rows == 0 ? 0 : 1);
}

row_range rows_of_block(std::uint64_t rows, std::uint64_t block_rows, std::uint64_t block) noexcept {
  auto first = std::min(rows, block * block_rows);
  return {first, first + std::min(block_rows, rows - first)};
}

row_range rows_of_shard(row_range block, std::uint32_t shards, std::uint32_t shard) noexcept {
  return {block.first + shard * block.size() / shards, block.first + (shard + 1) * block.size() / shards};
}

} // namespace troupe::inference
