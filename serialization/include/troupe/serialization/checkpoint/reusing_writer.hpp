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

/// Writes one part of successive checkpoints without writing unchanged chunks again. A chunk that equals the one in the
/// last committed checkpoint gets a file of its own; the next checkpoints hard-link that file, after reading it back
/// from the device and comparing its bytes. If that fails (damaged, removed, or links not possible), the chunk is
/// written. Every checkpoint's directory is complete by itself. Used by one thread at a time.
class reusing_writer {
 public:
  /// `files` must outlive the writer.
  explicit reusing_writer(reuse_policy policy = {}, file_system& files = local_files());

  /// Writes a part from the concatenated bytes of its chunks. Fails as `part_writer` does, and with `errc::aborted`
  /// once `stop` is requested.
  [[nodiscard]] expected<part_report> write(const std::filesystem::path& directory, std::uint32_t part,
                                            const chunk_plan& plan, std::span<const std::byte> bytes,
                                            const std::stop_token& stop = {});

  /// The part written last belongs to a checkpoint that is now committed at `directory`.
  void committed(std::filesystem::path directory);

  /// Returns and clears the problems found in files of earlier checkpoints: damage that no reader has reported yet.
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
