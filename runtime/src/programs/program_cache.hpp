#pragma once

#include <troupe/collectives/unique_fd.hpp>
#include <troupe/error.hpp>
#include <troupe/runtime/program.hpp>
#include <troupe/serialization/files/digest.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

namespace troupe::runtime {

/// The most bytes of a program in one piece.
inline constexpr std::size_t program_piece_bytes = std::size_t{1} << 20;

/// The programs that a node has taken from drivers, by build id, as DIRECTORY/BUILD-ID/NAME. When there is no room for
/// a new one, those that were used longest ago go. A program is identified anew whenever it is opened, and one that is
/// not what it should be is removed. What it is asked comes from a network: names that lead out of the directory are
/// refused with `errc::invalid_argument`. It blocks for the disk. Thread-safe.
class program_cache {
 public:
  /// `limit_bytes` is for all programs together.
  explicit program_cache(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Where the programs are; made with the first one. Before this call the cache has none, and takes none.
  void open(const std::filesystem::path& directory);

  [[nodiscard]] std::uint64_t limit_bytes() const noexcept { return limit_bytes_; }

  /// Fails with `errc::not_found`.
  [[nodiscard]] expected<program_file> find(const std::string& build_id);

  /// Begins a program of this size, and makes room for it. Returns the upload's id. Fails with `errc::unsatisfiable`
  /// for a program that is larger than the limit, with `errc::busy` while other uploads take the room, and with
  /// `errc::io_error` if the disk has none. An upload that has not gone on for a minute may be dropped.
  [[nodiscard]] expected<std::string> begin(const std::string& build_id, const std::string& name,
                                            std::uint64_t size_bytes);

  /// The next bytes. Fails with `errc::not_found` for an unknown upload, and with `errc::program_mismatch`, at the
  /// first bytes, for a program for another processor.
  [[nodiscard]] expected<void> write(const std::string& upload, std::uint64_t offset, std::string_view bytes);

  /// The program is complete, and has this SHA-256 (64 hexadecimal digits). Fails with `errc::damaged` if it has not,
  /// or is another build than it was said to be.
  [[nodiscard]] expected<void> finish(const std::string& upload, const std::string& sha256);

  /// Puts the program into a directory, under this name: another name for the same file where the file system can do
  /// that. It stays there when the cache drops it. Fails with `errc::not_found`.
  [[nodiscard]] expected<void> link(const std::string& build_id, const std::string& name,
                                    const std::filesystem::path& directory);

 private:
  using clock = std::chrono::steady_clock;

  struct upload {
    std::string build_id;
    std::string name;
    std::uint64_t size_bytes = 0;
    std::filesystem::path path;
    unique_fd file;
    std::uint64_t done = 0;
    serialization::sha256 digest;
    clock::time_point last;
  };

  /// The rest is called with the lock.
  [[nodiscard]] std::filesystem::path place_of(const std::string& build_id) const;
  [[nodiscard]] expected<program_file> open_checked(const std::string& build_id);
  [[nodiscard]] expected<void> make_room(std::uint64_t size_bytes);
  [[nodiscard]] expected<upload*> known(const std::string& id);

  const std::uint64_t limit_bytes_;
  std::mutex mutex_;
  std::filesystem::path directory_;
  std::map<std::string, upload> uploads_;
};

} // namespace troupe::runtime
