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

/// An open file that knows its path, for error messages. Closed by the destructor, which reports nothing: whoever
/// writes calls `sync()` first. Errors name the path and what was being done.
class file {
 public:
  file(const file&) = delete;
  file& operator=(const file&) = delete;
  virtual ~file() = default;

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] virtual expected<std::uint64_t> size_bytes() const = 0;

  /// Takes the space for `size_bytes` bytes, zeros for now, so that a full disk shows here.
  [[nodiscard]] virtual expected<void> reserve(std::uint64_t size_bytes) = 0;

  [[nodiscard]] virtual expected<void> write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes) = 0;

  /// Fills `target`; fails with `errc::damaged` if the file ends before. Several threads may read at once.
  [[nodiscard]] virtual expected<void> read_at(std::uint64_t offset_bytes, std::span<std::byte> target) const = 0;

  /// Returns once size and bytes are on the device. After a failure nobody knows what the file holds.
  [[nodiscard]] virtual expected<void> sync() = 0;

  /// Drops what the page cache holds, so that the next read comes from the device.
  virtual void drop_cached() const noexcept = 0;

 protected:
  explicit file(std::filesystem::path path) : path_(std::move(path)) {}

 private:
  std::filesystem::path path_;
};

/// What a name in a directory stands for.
enum class entry_kind : std::uint8_t { file = 1, directory = 2, other = 3 };

struct directory_entry {
  std::string name;
  /// Of the entry itself: a symbolic link is `other`.
  entry_kind kind = entry_kind::other;

  bool operator==(const directory_entry&) const = default;
};

/// What renaming does where the new name is taken.
enum class if_taken : std::uint8_t { refuse, replace };

/// Every operation on files that checkpoints are made of, and no other: what stands between the order in which a
/// checkpoint is written and the device. Tests put their own in its place, to crash, to fail and to lie. Errors are
/// `errc::not_found`, `errc::already_exists` or `errc::io_error`, and name the path, what was being done, and the
/// system's reason. Several threads may use one at once.
class file_system {
 public:
  file_system() = default;
  file_system(const file_system&) = delete;
  file_system& operator=(const file_system&) = delete;
  virtual ~file_system() = default;

  /// Opens a file for reading.
  [[nodiscard]] virtual expected<std::unique_ptr<file>> open(const std::filesystem::path& path) = 0;

  /// Makes a file for writing. Fails with `errc::already_exists` if there is one.
  [[nodiscard]] virtual expected<std::unique_ptr<file>> create(const std::filesystem::path& path) = 0;

  /// What stands at `path`, symbolic links followed; nothing if nothing does.
  [[nodiscard]] virtual expected<std::optional<entry_kind>> look_at(const std::filesystem::path& path) = 0;

  /// A directory's entries in order of name.
  [[nodiscard]] virtual expected<std::vector<directory_entry>> list(const std::filesystem::path& path) = 0;

  /// Fails with `errc::already_exists` if there is anything at `path`, and with `errc::not_found` if it would be in
  /// nothing.
  [[nodiscard]] virtual expected<void> make_directory(const std::filesystem::path& path) = 0;

  /// One step, also for whoever looks meanwhile. With `if_taken::refuse` nothing is ever replaced: fails with
  /// `errc::already_exists`.
  [[nodiscard]] virtual expected<void> rename(const std::filesystem::path& from, const std::filesystem::path& to,
                                              if_taken what) = 0;

  /// Gives a file another name, which keeps its bytes when the first one goes. False, with nothing done, where that is
  /// not to be had: across file systems, on one without links, or where the file has no more of them to give. Fails
  /// with `errc::already_exists` if there is anything at `to`, and with `errc::not_found` if there is no file.
  [[nodiscard]] virtual expected<bool> link(const std::filesystem::path& from, const std::filesystem::path& to) = 0;

  /// Removes a file, a link or an empty directory.
  [[nodiscard]] virtual expected<void> remove(const std::filesystem::path& path) = 0;

  /// Returns once a directory's entries are on the device.
  [[nodiscard]] virtual expected<void> sync_directory(const std::filesystem::path& path) = 0;
};

/// The machine's own file systems. Lives as long as the program and holds nothing.
[[nodiscard]] file_system& local_files();

/// Whether a system call's number says that there can be no link here.
[[nodiscard]] bool means_no_links(int cause);

/// The error of a system call that failed with the number `cause`: "writing /a/b: No space left on device (free space
/// there, or choose another storage path)".
[[nodiscard]] error file_error(int cause, std::string_view doing, const std::filesystem::path& path);

} // namespace troupe::serialization
