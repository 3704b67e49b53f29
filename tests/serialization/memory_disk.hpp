#pragma once

#include <troupe/serialization/files/file_system.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troupe::serialization {

/// What a machine crash does to one unsynced change.
struct fate {
  enum class kind : std::uint8_t { kept, lost, torn, garbled };

  kind what = kind::kept;
  /// The sector at which a write is torn, and the bytes that garble it.
  std::uint32_t seed = 0;

  auto operator<=>(const fate&) const = default;
};

/// A file system in memory that knows which changes are on the device. A machine crash leaves everything that was
/// synced; the fate of each other write, size and directory entry is decided separately and in no order. That is as
/// much as POSIX allows. A directory entry, and so a rename or a link, is atomic, and says nothing about its file's
/// bytes. Not thread-safe.
class memory_disk : public file_system {
 public:
  memory_disk();

  /// Called before every modifying operation, with the state that a crash at this moment would leave.
  std::function<void(const memory_disk&)> before_change;

  /// Files for which this returns true are not written to the device although `sync` succeeds.
  std::function<bool(const std::filesystem::path&)> sync_is_a_lie;

  /// Whether two names refer to the same file.
  [[nodiscard]] bool is_same(const std::filesystem::path& a, const std::filesystem::path& b) const;

  /// Damages a file on the device; the page cache stays valid.
  void spoil(const std::filesystem::path& path, std::size_t offset);

  /// The number of unsynced changes.
  [[nodiscard]] std::size_t unsynced() const;

  /// The state after a crash; one fate for each unsynced change, oldest file first.
  [[nodiscard]] std::unique_ptr<memory_disk> after_crash(const std::vector<fate>& fates) const;

  /// Reads a file's bytes, and replaces them on the device at once, to damage it.
  [[nodiscard]] std::vector<std::byte> bytes_at(const std::filesystem::path& path) const;
  void put(const std::filesystem::path& path, std::vector<std::byte> bytes);

  expected<std::unique_ptr<file>> open(const std::filesystem::path& path) override;
  expected<std::unique_ptr<file>> create(const std::filesystem::path& path) override;
  expected<std::optional<entry_kind>> look_at(const std::filesystem::path& path) override;
  expected<std::vector<directory_entry>> list(const std::filesystem::path& path) override;
  expected<void> make_directory(const std::filesystem::path& path) override;
  expected<void> rename(const std::filesystem::path& from, const std::filesystem::path& to, if_taken what) override;
  expected<bool> link(const std::filesystem::path& from, const std::filesystem::path& to) override;
  expected<void> remove(const std::filesystem::path& path) override;
  expected<void> sync_directory(const std::filesystem::path& path) override;

 private:
  struct node;
  class handle;
  using node_pointer = std::shared_ptr<node>;

  node_pointer make_node(bool is_directory);
  [[nodiscard]] node_pointer find(const std::filesystem::path& path) const;
  void change() const;

  /// Releases files without a name in memory and on the device.
  void forget_removed();

  /// In order of creation. Includes removed files that the device may still hold.
  std::vector<node_pointer> nodes_;
  node_pointer root_;
};

} // namespace troupe::serialization
