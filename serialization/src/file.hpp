#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>

namespace troupe::serialization {

/// An open file that knows its path, for error messages. Closed by the destructor, which reports nothing: whoever
/// writes calls `sync()` first.
class file {
 public:
  [[nodiscard]] static expected<file> open(const std::filesystem::path& path);

  /// Fails with `errc::already_exists` if there is one.
  [[nodiscard]] static expected<file> create(const std::filesystem::path& path);

  file(file&& other) noexcept;
  file& operator=(file&& other) noexcept;
  ~file();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] expected<std::uint64_t> size_bytes() const;

  /// Takes the space for `size_bytes` bytes, zeros for now, so that a full disk shows here.
  [[nodiscard]] expected<void> reserve(std::uint64_t size_bytes);

  [[nodiscard]] expected<void> write_at(std::uint64_t offset_bytes, std::span<const std::byte> bytes);

  /// Fills `target`; fails with `errc::damaged` if the file ends before.
  [[nodiscard]] expected<void> read_at(std::uint64_t offset_bytes, std::span<std::byte> target) const;

  [[nodiscard]] expected<void> sync();

  /// Drops what the page cache holds, so that the next read comes from the device.
  void drop_cached() const noexcept;

 private:
  file(int descriptor, std::filesystem::path path) noexcept;

  int descriptor_ = -1;
  std::filesystem::path path_;
};

/// Brings a directory's entries to the device.
[[nodiscard]] expected<void> sync_directory(const std::filesystem::path& path);

/// The error of a std::filesystem call: "reading /a/b: Permission denied".
[[nodiscard]] error filesystem_error(std::error_code code, std::string_view doing, const std::filesystem::path& path);

} // namespace troupe::serialization
