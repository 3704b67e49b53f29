#pragma once

#include <troupe/actors/mirror_storage.hpp>
#include <troupe/error.hpp>
#include <troupe/types.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::runtime {

/// The most bytes of a file in one piece.
inline constexpr std::size_t mirror_piece_bytes = std::size_t{1} << 20;

/// A file of a mirror.
struct mirror_file {
  std::string name;
  std::uint64_t size = 0;
};

/// The directory in which a node keeps mirrors of runs for others. What it is asked comes from a network: places and
/// names that lead out of the directory are refused with `errc::invalid_argument` (see `is_plain_path`), and so are
/// holes in files. Files grow in pieces under a temporary name, and are renamed once they are whole. Other errors are
/// those of `actors::mirror_storage`. It blocks for the disk. Thread-safe, except for one run's place: two that write
/// there disturb each other, and neither gets a damaged checkpoint in.
class mirror_shelf {
 public:
  explicit mirror_shelf(std::filesystem::path root) : root_(std::move(root)) {}

  [[nodiscard]] expected<actors::mirror_content> list(const std::string& place) const;

  enum class begun : std::uint8_t { has_it, awaits_parts };
  /// Begins a checkpoint, unless there is a good one of this step, and forgets earlier attempts.
  [[nodiscard]] expected<begun> begin(const std::string& place, step_id step) const;
  [[nodiscard]] expected<void> write_part(const std::string& place, step_id step, const std::string& name,
                                          std::uint64_t offset, std::string_view bytes) const;
  /// Lets readers find the checkpoint, if it verifies.
  [[nodiscard]] expected<void> adopt(const std::string& place, step_id step) const;
  [[nodiscard]] expected<void> remove(const std::string& place, step_id step) const;

  /// A piece of a file in the place itself; offset 0 begins it.
  [[nodiscard]] expected<void> write_file(const std::string& place, const std::string& name, std::uint64_t offset,
                                          std::string_view bytes) const;
  [[nodiscard]] expected<void> finish_file(const std::string& place, const std::string& name) const;

  /// The files of a checkpoint.
  [[nodiscard]] expected<std::vector<mirror_file>> files(const std::string& place, step_id step) const;
  /// At most `limit` bytes, and not more than a piece; fewer at the end. `name` is a path in the place.
  [[nodiscard]] expected<std::string> read(const std::string& place, const std::string& name, std::uint64_t offset,
                                           std::size_t limit) const;

  /// Renames the place. Returns its new path; empty if nothing was there.
  [[nodiscard]] expected<std::string> move_aside(const std::string& place) const;

 private:
  /// Fails for what is no plain path.
  [[nodiscard]] expected<std::filesystem::path> at(const std::string& place) const;

  std::filesystem::path root_;
};

} // namespace troupe::runtime
