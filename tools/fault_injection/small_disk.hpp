#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace troupe::chaos {

/// A file system in memory that is small enough to be filled. The destructor unmounts it.
class small_disk {
 public:
  /// Mounts it on an existing directory. Returns null and sets `reason` on failure, for example without permission to
  /// mount.
  [[nodiscard]] static std::unique_ptr<small_disk> mount(const std::filesystem::path& where, std::string& reason);
  small_disk(const small_disk&) = delete;
  small_disk& operator=(const small_disk&) = delete;
  ~small_disk();

  /// Fills the disk completely until `free` is called.
  void fill() const;
  void free() const;

 private:
  explicit small_disk(std::filesystem::path where) : where_(std::move(where)) {}
  [[nodiscard]] std::filesystem::path ballast() const { return where_ / "ballast"; }

  std::filesystem::path where_;
};

} // namespace troupe::chaos
