#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

namespace troupe::data {

/// A file's bytes: mapped, or in memory if the file cannot be mapped (such as a pipe).
struct file_bytes {
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;

  [[nodiscard]] std::string_view text() const noexcept {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
};

/// Fails with `errc::not_found` or `errc::io_error`, naming the path. A mapped file must not shrink while it is in use:
/// accessing the missing pages raises SIGBUS.
[[nodiscard]] expected<file_bytes> open_bytes(const std::filesystem::path& path);

} // namespace troupe::data
