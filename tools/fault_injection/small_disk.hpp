#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace troupe::chaos {

/// A file system in memory, small enough to be filled. Unmounted with this object.
class small_disk {
 public:
  /// Mounts it on a directory that exists. Fails with the reason, as it does without the right to mount.
  [[nodiscard]] static std::unique_ptr<small_disk> mount(const std::filesystem::path& where, std::string& reason);
  small_disk(const small_disk&) = delete;
  small_disk& operator=(const small_disk&) = delete;
  ~small_disk();

  /// Leaves no byte for anybody else, until `free` is called.
  void fill() const;
  void free() const;

 private:
  explicit small_disk(std::filesystem::path where) : where_(std::move(where)) {}
  [[nodiscard]] std::filesystem::path ballast() const { return where_ / "ballast"; }

  std::filesystem::path where_;
};

} // namespace troupe::chaos
