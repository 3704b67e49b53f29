#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <sys/types.h>

namespace troupe::chaos {

/// A file system that is small enough to be filled, and that can be frozen if it is one on a loop device. The
/// destructor thaws and unmounts it.
class small_disk {
 public:
  /// Mounts a file system in memory on an existing directory. Returns null and sets `reason` on failure, for example
  /// without permission to mount.
  [[nodiscard]] static std::unique_ptr<small_disk> in_memory(const std::filesystem::path& where, std::string& reason);
  /// The same with a file system in the new file `image`.
  [[nodiscard]] static std::unique_ptr<small_disk>
  on_loop_device(const std::filesystem::path& image, const std::filesystem::path& where, std::string& reason);
  small_disk(const small_disk&) = delete;
  small_disk& operator=(const small_disk&) = delete;
  ~small_disk();

  /// Fills the disk completely until `free` is called. Call neither while it is frozen: they would block.
  void fill() const;
  void free() const;

  [[nodiscard]] bool can_freeze() const noexcept { return directory_ >= 0; }
  /// Makes all writers sleep uninterruptibly until `thaw` is called or this process ends in any way. False if the
  /// system refuses.
  [[nodiscard]] bool freeze();
  void thaw();

 private:
  explicit small_disk(std::filesystem::path where) : where_(std::move(where)) {}
  [[nodiscard]] std::filesystem::path ballast() const { return where_ / "ballast"; }

  std::filesystem::path where_;
  /// Open for freezing; -1 in memory.
  int directory_ = -1;
  /// The process that has frozen the disk, and a connection to it: it thaws at the first byte, or when the connection
  /// ends. -1 while the disk is not frozen.
  pid_t guard_ = -1;
  int guard_link_ = -1;
};

} // namespace troupe::chaos
