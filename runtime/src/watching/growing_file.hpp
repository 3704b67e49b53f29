#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <sys/types.h>

namespace troupe::runtime {

/// Reads a file of lines as it grows. Of more than `most_bytes` that it has not read yet it reads the last half of
/// that, and blocks in even distances of what is before.
class growing_file {
 public:
  using line_sink = std::function<void(std::string_view line)>;

  growing_file(std::filesystem::path path, std::size_t most_bytes) : path_(std::move(path)), most_bytes_(most_bytes) {}

  /// Calls `sink` for each complete line since the last call. If the file was replaced or cut, it calls `forget` first
  /// and begins anew.
  void read(const std::function<void()>& forget, const line_sink& sink);

  /// Whether lines were left out.
  [[nodiscard]] bool is_sampled() const noexcept { return is_sampled_; }

 private:
  [[nodiscard]] bool continues(int file, ino_t inode, std::uint64_t size) const;
  void read_range(int file, std::uint64_t from, std::uint64_t to, bool is_whole, const line_sink& sink);

  std::filesystem::path path_;
  std::size_t most_bytes_;
  ino_t inode_ = 0;
  /// Behind the last complete line.
  std::uint64_t offset_ = 0;
  /// The last bytes before that, by which a file is known that was cut and has grown again.
  std::string tail_;
  bool is_sampled_ = false;
};

} // namespace troupe::runtime
