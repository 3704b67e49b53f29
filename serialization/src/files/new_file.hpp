#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/files/existing_file.hpp>
#include <troupe/serialization/files/file_system.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

namespace troupe::serialization {

/// A file that is written piece by piece under a temporary name beside its own, and takes its own name when it is
/// whole. Removed by the destructor before that.
class new_file {
 public:
  /// Begins a file of `size_bytes` bytes. Fails with `errc::already_exists` if there is one that is to stay.
  [[nodiscard]] static expected<new_file> create(const std::filesystem::path& path, std::uint64_t size_bytes,
                                                 existing_file existing);

  new_file(new_file&& other) noexcept;
  ~new_file();

  [[nodiscard]] std::uint64_t written_bytes() const noexcept { return written_bytes_; }

  [[nodiscard]] expected<void> append(std::span<const std::byte> bytes);

  /// Gives the file its name; returns once both are on the device.
  [[nodiscard]] expected<void> commit();

 private:
  new_file(std::unique_ptr<file> target, std::filesystem::path path, existing_file existing);

  std::unique_ptr<file> target_;
  std::filesystem::path path_;
  existing_file existing_;
  std::uint64_t written_bytes_ = 0;
  // Empty once the name is given, and after a move.
  std::filesystem::path temporary_;
};

/// Renames a file or directory to a name that is free, unless what is there may be replaced. Fails with
/// `errc::already_exists`.
[[nodiscard]] expected<void> rename_to_target(const std::filesystem::path& from, const std::filesystem::path& to,
                                              existing_file existing);

} // namespace troupe::serialization
