#pragma once

#include <troupe/error.hpp>

#include <filesystem>

/// Directories of keys: private to their user, locked while keys are made, and filled all at once.
namespace troupe::runtime {

/// Fails with `errc::not_authenticated` for a directory that belongs to another user or that others can write to.
[[nodiscard]] expected<void> check_directory(const std::filesystem::path& path);

/// Creates a directory of keys that only this user can enter, or checks an existing one.
[[nodiscard]] expected<void> ensure_directory(const std::filesystem::path& path);

void sync_directory(const std::filesystem::path& path);

/// True for a dangling link, too.
[[nodiscard]] bool is_present(const std::filesystem::path& path);

/// Admits one process at a time to a directory. Does nothing on a file system without locks; making keys for the first
/// time is safe without one.
class directory_lock {
 public:
  explicit directory_lock(const std::filesystem::path& path);
  directory_lock(const directory_lock&) = delete;
  directory_lock& operator=(const directory_lock&) = delete;
  ~directory_lock();

 private:
  int fd_;
};

/// A new directory beside the one in which its content is to appear. The destructor removes it and all its files unless
/// it has been moved there.
class staging_directory {
 public:
  [[nodiscard]] static expected<staging_directory> make(const std::filesystem::path& parent);
  staging_directory(staging_directory&& other) noexcept;
  staging_directory& operator=(staging_directory&&) = delete;
  ~staging_directory();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  /// Renames it to `target`, which must not exist. False when another process has created `target` meanwhile.
  [[nodiscard]] expected<bool> move_to(const std::filesystem::path& target);

  /// Exchanges it with `target`, whose files the destructor then removes.
  [[nodiscard]] expected<void> replace(const std::filesystem::path& target);

 private:
  explicit staging_directory(std::filesystem::path path) : path_(std::move(path)) {}

  /// For file systems that cannot exchange two names, such as NFS.
  bool swap_in_two_steps(const std::filesystem::path& target);

  std::filesystem::path path_;
};

} // namespace troupe::runtime
