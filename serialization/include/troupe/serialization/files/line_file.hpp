#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

namespace troupe::serialization {

/// A text file to which whole lines are appended. Lines that a full or broken disk does not take are kept, and retried
/// with the next lines. The file never ends within a line, unless its writer is killed. Used by one thread.
class line_file {
 public:
  /// Limit of the lines that wait for the disk. More lines are dropped and counted.
  static constexpr std::size_t most_waiting_bytes = std::size_t{16} << 20;

  /// Opens nothing yet.
  explicit line_file(std::filesystem::path path) : path_(std::move(path)) {}
  line_file(line_file&& other) noexcept;
  line_file& operator=(line_file&& other) noexcept;
  ~line_file();

  /// Appends lines that end with '\n', after those that wait. Creates the file if there is none. Fails with
  /// `errc::io_error` if not all of them are in the file.
  [[nodiscard]] expected<void> append(std::string_view lines);

  /// Takes the lines that the disk has not taken. They are not retried.
  [[nodiscard]] std::string take_waiting() noexcept { return std::exchange(waiting_, {}); }

  /// How many lines were dropped since this was asked last.
  [[nodiscard]] std::uint64_t take_dropped() noexcept;

 private:
  [[nodiscard]] expected<void> write_waiting();

  std::filesystem::path path_;
  int fd_ = -1;
  std::string waiting_;
  std::uint64_t dropped_ = 0;
};

} // namespace troupe::serialization
