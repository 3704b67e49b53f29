#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace troupe::serialization {

/// An open file that knows its path. The destructor closes it and reports no error: a writer calls `sync()` first.
/// Error messages name the path and the operation.
class file {
 public:
  file(const file&) = delete;
  file& operator=(const file&) = delete;
  virtual ~file() = default;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] virtual expected<std::uint64_t> size_bytes() const = 0;

  /// Reserves `size_bytes` bytes, filled with zeros, so that a full disk is detected here.
  [[nodiscard]] virtual expected<void> reserve(std::uint64_t size_bytes) = 0;

  [[nodiscard]] virtual expected<void> write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) = 0;

  /// Fills `target`; fails with `errc::damaged` if the file is too short. Several threads may read at once.
  [[nodiscard]] virtual expected<void> read_at(std::uint64_t offset_bytes, std::span<std::byte> target) const = 0;

  /// Returns once size and bytes are on the device. After a failure the file's content is undefined.
  [[nodiscard]] virtual expected<void> sync() = 0;

  /// Drops the file from the page cache, so that the next read comes from the device.
  virtual void drop_cached() const noexcept = 0;

 protected:
  explicit file(std::filesystem::path path) : path_(std::move(path)) {}

 private:
  std::filesystem::path path_;
};

/// The type of a directory entry.
enum class entry_kind : std::uint8_t { file = 1, directory = 2, other = 3 };

struct directory_entry {
  std::string name;
  /// Of the entry itself: a symbolic link is `other`.
  entry_kind kind = entry_kind::other;

  bool operator==(const directory_entry&) const = default;
};

/// What a rename does if the new name exists.
enum class if_taken : std::uint8_t { refuse, replace };

/// All file operations that checkpoints use. Tests substitute their own implementation, which crashes, fails or loses
/// data. Errors are `errc::not_found`, `errc::already_exists` or `errc::io_error`, and name the path, the operation and
/// the system's reason. Thread-safe.
class file_system {
 public:
  file_system() = default;
  file_system(const file_system&) = delete;
  file_system& operator=(const file_system&) = delete;
  virtual ~file_system() = default;

  /// Opens a file for reading.
  [[nodiscard]] virtual expected<std::unique_ptr<file>> open(const std::filesystem::path& path) = 0;

  /// Creates a file for writing. Fails with `errc::already_exists` if it exists.
  [[nodiscard]] virtual expected<std::unique_ptr<file>> create(const std::filesystem::path& path) = 0;

  /// The type of the entry at `path`, following symbolic links; `nullopt` if there is none.
  [[nodiscard]] virtual expected<std::optional<entry_kind>> look_at(const std::filesystem::path& path) = 0;

  /// A directory's entries in order of name.
  [[nodiscard]] virtual expected<std::vector<directory_entry>> list(const std::filesystem::path& path) = 0;

  /// Fails with `errc::already_exists` if `path` exists, and with `errc::not_found` if its parent does not.
  [[nodiscard]] virtual expected<void> make_directory(const std::filesystem::path& path) = 0;

  /// Atomic. With `if_taken::refuse` nothing is replaced: fails with `errc::already_exists`.
  [[nodiscard]] virtual expected<void> rename(const std::filesystem::path& from, const std::filesystem::path& to,
                                              if_taken what) = 0;

  /// Makes `to` a hard link to the file `from`. Returns false and does nothing if that is not possible: across file
  /// systems, on one without links, or at the file's limit of links. Fails with `errc::already_exists` if `to` exists,
  /// and with `errc::not_found` if `from` does not.
  [[nodiscard]] virtual expected<bool> link(const std::filesystem::path& from, const std::filesystem::path& to) = 0;

  /// Removes a file, a link or an empty directory.
  [[nodiscard]] virtual expected<void> remove(const std::filesystem::path& path) = 0;

  /// Returns once a directory's entries are on the device.
  [[nodiscard]] virtual expected<void> sync_directory(const std::filesystem::path& path) = 0;
};

/// The operating system's files. Stateless; lives as long as the program.
[[nodiscard]] file_system& local_files();

/// Whether `cause`, an `errno` value, means that a hard link is not possible here.
[[nodiscard]] bool means_no_links(int cause);

/// The error for a system call that failed with `errno` value `cause`: "writing /a/b: No space left on device (free
/// space there, or choose another storage path)".
[[nodiscard]] error file_error(int cause, std::string_view doing, const std::filesystem::path& path);

} // namespace troupe::serialization
