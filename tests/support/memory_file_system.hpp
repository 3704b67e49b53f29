#pragma once

#include <filesystem>
#include <string>
#include <sys/mount.h>
#include <utility>

namespace troupe::testing {

/// A file system in memory, mounted on a directory during this object's lifetime: one that becomes full, or read-only.
/// Not mounted without the right to.
class memory_file_system {
 public:
  /// `options`: as "size=16k".
  memory_file_system(std::filesystem::path path, const std::string& options) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    mounted_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, options.c_str()) == 0;
  }
  memory_file_system(const memory_file_system&) = delete;
  memory_file_system& operator=(const memory_file_system&) = delete;
  ~memory_file_system() {
    if (mounted_)
      ::umount2(path_.c_str(), MNT_DETACH);
  }

  [[nodiscard]] bool mounted() const noexcept { return mounted_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

  [[nodiscard]] bool make_read_only() const { return remount(MS_RDONLY, ""); }
  [[nodiscard]] bool make_writable() const { return remount(0, ""); }
  /// `options`: as "size=64m".
  [[nodiscard]] bool resize(const std::string& options) const { return remount(0, options); }

 private:
  [[nodiscard]] bool remount(unsigned long flags, const std::string& options) const {
    return ::mount("tmpfs", path_.c_str(), "tmpfs", MS_REMOUNT | flags, options.c_str()) == 0;
  }

  std::filesystem::path path_;
  bool mounted_ = false;
};

} // namespace troupe::testing
