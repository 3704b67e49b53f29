#pragma once

#include <troupe/serialization/checkpoint/chunk_plan.hpp>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace troupe::serialization {

/// Which unchanged chunks are linked instead of written again.
struct reuse_policy {
  /// Smaller chunks are not worth a file of their own.
  std::uint64_t least_bytes = 1 << 20;
  /// The most checkpoints that share a file, which bounds the damage of a bad sector. At least 1.
  std::uint32_t checkpoints_per_file = 8;

  /// Every chunk is written every time.
  [[nodiscard]] static constexpr reuse_policy none() { return {std::numeric_limits<std::uint64_t>::max(), 1}; }
};

/// Where a chunk's bytes are stored.
enum class chunk_place : std::uint8_t {
  /// With other chunks in the part's file.
  part = 1,
  /// In a new file of its own, which later checkpoints can link.
  own_file = 2,
  /// In the previous checkpoint's file for this chunk, which is hard-linked.
  link = 3,
};

/// A chunk of the last committed checkpoint.
struct known_chunk {
  std::uint64_t xxh3 = 0;
  /// How many checkpoints share the chunk's own file; 0 if it has none.
  std::uint32_t checkpoints = 0;

  bool operator==(const known_chunk&) const = default;
};

/// The decision about a chunk, and why.
struct chunk_decision {
  chunk_place place = chunk_place::part;
  std::string_view reason;
};

/// Decides for a chunk of `length_bytes` with checksum `xxh3`; `before` is the same chunk of the last committed
/// checkpoint, if known. Equal checksums only suggest a link: the caller compares the bytes.
[[nodiscard]] chunk_decision decide_chunk(std::uint64_t length_bytes, std::uint64_t xxh3,
                                          const std::optional<known_chunk>& before, const reuse_policy& policy);

/// A part writer's memory of the last committed checkpoint. A value; accesses no files.
class chunk_memory {
 public:
  /// The known chunks of `part`, in the plan's order; empty if there is no committed checkpoint or it had another plan.
  [[nodiscard]] std::span<const known_chunk> known(const chunk_plan& plan, std::uint32_t part) const;

  /// The directory of that checkpoint.
  [[nodiscard]] const std::filesystem::path& directory() const noexcept { return committed_.directory; }

  /// `begun` starts a new part and forgets an uncommitted one; `written` records the part, which counts once
  /// `committed` is called for its checkpoint.
  void begun() noexcept { written_.reset(); }
  void written(chunk_plan plan, std::uint32_t part, std::vector<known_chunk> chunks);
  void committed(std::filesystem::path directory);

 private:
  struct record {
    std::filesystem::path directory;
    chunk_plan plan;
    std::uint32_t part = 0;
    std::vector<known_chunk> chunks;
  };

  record committed_;
  std::optional<record> written_;
};

} // namespace troupe::serialization
