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

/// Which chunks that do not change are not written again.
struct reuse_policy {
  /// Smaller ones are not worth a file of their own.
  std::uint64_t least_bytes = 1 << 20;
  /// No file is in more checkpoints than so many, so that no bad sector spoils more. 1 or more.
  std::uint32_t checkpoints_per_file = 8;

  /// Everything is written every time.
  [[nodiscard]] static constexpr reuse_policy none() { return {std::numeric_limits<std::uint64_t>::max(), 1}; }
};

/// Where the bytes of a chunk go.
enum class chunk_place : std::uint8_t {
  /// Among others in the part's file.
  part = 1,
  /// Into a new file of its own, from which later checkpoints can take them.
  own_file = 2,
  /// Nowhere: the file of its own of the checkpoint before gets another name.
  link = 3,
};

/// A chunk as it is in the last committed checkpoint.
struct known_chunk {
  std::uint64_t xxh3 = 0;
  /// In how many checkpoints the file of its own is; 0 without one.
  std::uint32_t checkpoints = 0;

  bool operator==(const known_chunk&) const = default;
};

/// What becomes of a chunk, and why.
struct chunk_decision {
  chunk_place place = chunk_place::part;
  std::string_view reason;
};

/// Decides for a chunk of `length_bytes` with the checksum `xxh3`, of which `before` is known, if anything. Equal
/// checksums only make it worth a try: whoever links compares the bytes.
[[nodiscard]] chunk_decision decide_chunk(std::uint64_t length_bytes, std::uint64_t xxh3,
                                          const std::optional<known_chunk>& before, const reuse_policy& policy);

/// What the writer of a part remembers of the last committed checkpoint. A plain value, without files.
class chunk_memory {
 public:
  /// What is known of each chunk of `part`, in the plan's order; nothing of any if the last committed checkpoint had
  /// another plan, or there is none.
  [[nodiscard]] std::span<const known_chunk> known(const chunk_plan& plan, std::uint32_t part) const;

  /// The directory of the checkpoint of which that is known.
  [[nodiscard]] const std::filesystem::path& directory() const noexcept { return committed_.directory; }

  /// A part has been written. It counts once its checkpoint is committed, and is forgotten when another is begun before
  /// that.
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
