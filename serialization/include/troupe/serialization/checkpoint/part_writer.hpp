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

/// Where a chunk goes.
struct placed_chunk {
  chunk_place place = chunk_place::part;
  /// Of one whose file is linked already.
  std::uint64_t xxh3 = 0;
};

/// Writes the file of one part of a checkpoint from bytes that come in pieces: `write_part` for whoever does not have
/// the tensors at hand, or wants to look up in between. A resource: used from one thread at a time. What is destroyed
/// before `finish` leaves a file that nobody reports, for `remove_abandoned`.
class part_writer {
 public:
  /// Makes `directory` where it is missing and the part's file in it, and reserves its space, so that a full disk shows
  /// here. `places` are those of the part's chunks; none stands for all in the part's file. The files of links are
  /// there, and nobody writes their bytes; a chunk with a file of its own gets it when its bytes come. Fails with
  /// `errc::already_exists` if this part was begun before, `errc::invalid_argument` if the plan has no such part, or
  /// `errc::io_error`. `files` outlives it.
  [[nodiscard]] static expected<part_writer> create(const std::filesystem::path& directory, std::uint32_t part,
                                                    const chunk_plan& plan, file_system& files = local_files(),
                                                    std::span<const placed_chunk> places = {});

  part_writer(part_writer&& other) noexcept;
  part_writer& operator=(part_writer&& other) noexcept;
  ~part_writer();

  /// How many bytes are still to come.
  [[nodiscard]] std::uint64_t missing_bytes() const noexcept;

  /// Takes the bytes that come next: those of the part's chunks in the plan's order, without those of links and
  /// without what lies between them in the file. Pieces may have any length. Fails with `errc::invalid_argument` for
  /// more than are missing, or `errc::io_error`.
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
