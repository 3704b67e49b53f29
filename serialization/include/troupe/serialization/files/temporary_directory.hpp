#pragma once

#include <filesystem>
#include <system_error>
#include <utility>

namespace troupe::serialization {

/// Owns a directory that exists already, and removes it with all it contains. Links in it are removed, not followed.
class temporary_directory {
 public:
  explicit temporary_directory(std::filesystem::path path) : path_(std::move(path)) {}
  temporary_directory(temporary_directory&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  temporary_directory& operator=(temporary_directory&&) = delete;
  ~temporary_directory() {
    auto ignored = std::error_code{};
    if (!path_.empty())
      std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

} // namespace troupe::serialization
