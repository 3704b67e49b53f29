#pragma once

#include <cstdint>

namespace troupe::inference {

/// The half-open range of rows from `first` to `last`.
struct row_range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  [[nodiscard]] std::uint64_t size() const noexcept { return last - first; }
  bool operator==(const row_range&) const = default;
};

/// The number of blocks of `rows` rows.
[[nodiscard]] std::uint64_t block_count(std::uint64_t rows, std::uint64_t block_rows) noexcept;

/// The rows of the block with this index, from 0. The last block may be shorter.
[[nodiscard]] row_range rows_of_block(std::uint64_t rows, std::uint64_t block_rows, std::uint64_t block) noexcept;

/// A shard's part of a block; may be empty. The shards of all blocks together contain each row once.
[[nodiscard]] row_range rows_of_shard(row_range block, std::uint32_t shards, std::uint32_t shard) noexcept;

} // namespace troupe::inference
