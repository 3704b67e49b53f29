#pragma once

#include <troupe/error.hpp>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace troupe::serialization {

/// Owns a directory, and removes it with all it contains. Links in it are removed, not followed.
class temporary_directory {
 public:
  /// Makes NAME-XXXXXX, with random letters for the X, where temporary files are (TMPDIR, or /tmp): an absolute path,
  /// for this user alone. Fails with `errc::io_error`, or as `system_error` says.
  [[nodiscard]] static expected<temporary_directory> make(const std::string& name) {
    auto code = std::error_code{};
    auto path =
        (std::filesystem::absolute(std::filesystem::temp_directory_path(code), code) / (name + "-XXXXXX")).string();
    if (::mkdtemp(path.data()) == nullptr)
      return fail(system_error("cannot make a directory " + path + " (TMPDIR names another place)"));
    return temporary_directory{path};
  }

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
