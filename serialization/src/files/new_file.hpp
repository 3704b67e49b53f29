#pragma once

#include <troupe/error.hpp>
#include <troupe/serialization/files/existing_file.hpp>
#include <troupe/serialization/files/file_system.hpp>
#include <troupe/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

namespace troupe::serialization {

/// A file written piece by piece under a temporary name in the target's directory, and renamed once complete. The
/// destructor removes an incomplete file.
class new_file {
 public:
  /// Creates a file of `size_bytes` bytes. Fails with `errc::already_exists` if `path` exists and is to be kept.
  [[nodiscard]] static expected<new_file> create(const std::filesystem::path& path, std::uint64_t size_bytes,
                                                 existing_file existing);

  new_file(new_file&& other) noexcept;
  ~new_file();

  [[nodiscard]] expected<void> append(std::span<const std::byte> bytes);

  /// Renames the file to its final name; returns once file and name are on the device.
  [[nodiscard]] expected<void> commit();

 private:
  new_file(std::unique_ptr<file> target, std::filesystem::path path, existing_file existing);

  std::unique_ptr<file> target_;
  std::filesystem::path path_;
  existing_file existing_;
  std::uint64_t written_bytes_ = 0;
  // Empty after the rename and after a move.
  std::filesystem::path temporary_;
};

/// Passes all bytes of a tensor to the sink, in order.
using tensor_bytes_source = std::function<expected<void>(const std::function<void(std::span<const std::byte>)>& sink)>;

/// Appends a tensor's bytes. Fails with `errc::invalid_argument` if `source` passes more or fewer bytes than the tensor
/// has, and as `source` and `new_file::append` do.
[[nodiscard]] expected<void> append_tensor(new_file& target, const tensor_spec& spec,
                                           const tensor_bytes_source& source);

/// Renames a file or directory to `to`, which must be unused unless it may be replaced. Fails with
/// `errc::already_exists`.
[[nodiscard]] expected<void> rename_to_target(const std::filesystem::path& from, const std::filesystem::path& to,
                                              existing_file existing);

} // namespace troupe::serialization
