#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/checkpoint/chunk_plan.hpp>
#include <troupe/serialization/checkpoint/chunk_reuse.hpp>
#include <troupe/serialization/checkpoint/part.hpp>
#include <troupe/serialization/files/file_system.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace troupe::serialization {

/// Where to store a chunk.
struct placed_chunk {
  chunk_place place = chunk_place::part;
  /// For `chunk_place::link`: the checksum of the file that is already linked.
  std::uint64_t xxh3 = 0;
};

/// Writes the file of one part from bytes that arrive in pieces: `write_part` for callers that do not hold the tensors,
/// or that check for a stop between pieces. Used by one thread at a time. A writer destroyed before `finish` leaves an
/// unreported file for `remove_abandoned`.
class part_writer {
 public:
  /// Creates `directory` if missing and the part's file in it, and reserves its space, so that a full disk is detected
  /// here. `places` are those of the part's chunks; empty means that all are stored in the part's file. The files of
  /// links must exist already and their bytes are not passed to `write`; a chunk's own file is created when its bytes
  /// arrive. Fails with `errc::already_exists` if this part's file exists, `errc::invalid_argument` if the plan has no
  /// such part, or `errc::io_error`. `files` must outlive the writer.
  [[nodiscard]] static expected<part_writer> create(const std::filesystem::path& directory, std::uint32_t part,
                                                    const chunk_plan& plan, file_system& files = local_files(),
                                                    std::span<const placed_chunk> places = {});

  part_writer(part_writer&& other) noexcept;
  part_writer& operator=(part_writer&& other) noexcept;
  ~part_writer();

  /// How many bytes are still missing.
  [[nodiscard]] std::uint64_t missing_bytes() const noexcept;

  /// Writes the next bytes: those of the part's chunks in the plan's order, without links and without the padding
  /// between chunks. Pieces may have any length. Fails with `errc::invalid_argument` for more bytes than are missing,
  /// or with `errc::io_error`.
  [[nodiscard]] expected<void> write(std::span<const std::byte> bytes);

  /// Returns once files and directory entries are on the device. Fails with `errc::invalid_argument` while bytes are
  /// missing, or with `errc::io_error`.
  [[nodiscard]] expected<part_report> finish();

 private:
  struct state;

  explicit part_writer(std::unique_ptr<state> state);

  std::unique_ptr<state> state_;
};

} // namespace troupe::serialization
