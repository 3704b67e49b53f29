#pragma once

#include <troupe/serialization/files/file_system.hpp>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace troupe::serialization {

/// What a crash of the machine makes of one change that was not synced.
struct fate {
  enum class kind : std::uint8_t { kept, lost, torn, garbled };

  kind what = kind::kept;
  /// Where a write is torn, at a sector, and what it is garbled with.
  std::uint32_t seed = 0;

  auto operator<=>(const fate&) const = default;
};

/// A file system in memory that knows what of it is on the device, which is what is left after a crash of the machine:
/// everything that was synced, and of the rest what fate has decided, each write, size and directory entry for itself
/// and in no order. That is as much as POSIX allows; one entry, and so a rename or a link, is there or not, and
/// says nothing about the bytes of the file that it names. For one thread.
class memory_disk : public file_system {
 public:
  memory_disk();

  /// Called before every operation that changes anything, and at what a crash at this moment would find.
  std::function<void(const memory_disk&)> before_change;

  /// A file for which this answers true is not written to the device although `sync` says so.
  std::function<bool(const std::filesystem::path&)> sync_is_a_lie;

  /// Whether two names stand for one file.
  [[nodiscard]] bool is_same(const std::filesystem::path& a, const std::filesystem::path& b) const;

  /// Damage to what the device holds of a file; the page cache is as good as it was.
  void spoil(const std::filesystem::path& path, std::size_t offset);

  /// How many changes are not on the device.
  [[nodiscard]] std::size_t unsynced() const;

  /// What a crash leaves; one fate for each change that is not on the device, oldest file first.
  [[nodiscard]] std::unique_ptr<memory_disk> after_crash(const std::vector<fate>& fates) const;

  /// A file's bytes, and another file in its place, on the device at once: for doing damage.
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

  /// Lets go of what neither this machine nor the device has a name for.
  void forget_removed();

  /// In order of creation. Removed ones too, as long as the device may still hold them.
  std::vector<node_pointer> nodes_;
  node_pointer root_;
};

} // namespace troupe::serialization
