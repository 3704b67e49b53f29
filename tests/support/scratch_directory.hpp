#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <system_error>

namespace troupe::testing {

/// A temporary directory for one test, removed with this object.
class scratch_directory {
 public:
  explicit scratch_directory(const std::filesystem::path& parent = std::filesystem::temp_directory_path()) {
    auto name = (parent / "troupe-test-XXXXXX").string();
    if (!::mkdtemp(name.data()))
      throw std::runtime_error{"cannot make a scratch directory at " + name};
    path_ = name;
  }
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;
  ~scratch_directory() {
    auto ignored = std::error_code{};
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  auto in = std::ifstream{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

} // namespace troupe::testing
