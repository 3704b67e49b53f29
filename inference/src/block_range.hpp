#pragma once

#include <cstdint>

namespace troupe::inference {

/// Rows from `first` up to, but without, `last`.
struct row_range {
  std::uint64_t first = 0;
  std::uint64_t last = 0;

  [[nodiscard]] std::uint64_t size() const noexcept { return last - first; }
  bool operator==(const row_range&) const = default;
};

/// How many blocks `rows` rows make.
[[nodiscard]] std::uint64_t block_count(std::uint64_t rows, std::uint64_t block_rows) noexcept;

/// The rows of a block, from 0. The last one may be shorter.
[[nodiscard]] row_range rows_of_block(std::uint64_t rows, std::uint64_t block_rows, std::uint64_t block) noexcept;

/// The part of a block that is shard `shard`'s, of `shards`; may be empty. The shards of all blocks have each row once.
[[nodiscard]] row_range rows_of_shard(row_range block, std::uint32_t shards, std::uint32_t shard) noexcept;

} // namespace troupe::inference
