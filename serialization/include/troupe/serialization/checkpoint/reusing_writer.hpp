#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/chunk_plan.hpp>
#include <troupe/serialization/checkpoint/chunk_reuse.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/serialization/checkpoint/part_writer.hpp>
#include <troupe/serialization/files/file_system.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

namespace troupe::serialization {

/// Writes one part of checkpoint after checkpoint, and no chunk again that has not changed: a chunk that is the same as
/// in the last committed checkpoint gets a file of its own, and from then on the next checkpoints get a link to it,
/// each after the file has been read back from the device and its bytes were found to be the same. Where that fails (it
/// is damaged, gone, or cannot be linked) the chunk is written. Every checkpoint's directory is complete by itself. For
/// one thread at a time.
class reusing_writer {
 public:
  /// `files` outlives it.
  explicit reusing_writer(reuse_policy policy = {}, file_system& files = local_files());

  /// Writes a part as `part_writer` does, from the bytes of its chunks one after the other, and fails as it does; with
  /// `errc::aborted` once `stop` says so.
  [[nodiscard]] expected<part_report> write(const std::filesystem::path& directory, std::uint32_t part,
                                            const chunk_plan& plan, std::span<const std::byte> bytes,
                                            const std::stop_token& stop = {});

  /// What was written last belongs to a checkpoint that is committed, and is found at `directory`.
  void committed(std::filesystem::path directory);

  /// What was wrong with files of earlier checkpoints, told once: damage that no other reader has met yet.
  [[nodiscard]] std::vector<std::string> take_notices();

 private:
  [[nodiscard]] expected<placed_chunk> place(const std::filesystem::path& directory, const planned_chunk& chunk,
                                             const known_chunk& before, std::span<const std::byte> bytes,
                                             const std::stop_token& stop);
  [[nodiscard]] expected<bool> take_over(const std::filesystem::path& from, const std::filesystem::path& to,
                                         std::span<const std::byte> bytes, const std::stop_token& stop);
  [[nodiscard]] expected<void> compare(const std::filesystem::path& path, std::span<const std::byte> bytes,
                                       const std::stop_token& stop) const;

  reuse_policy policy_;
  file_system* files_;
  chunk_memory memory_;
  std::vector<std::string> notices_;
};

} // namespace troupe::serialization
