#pragma once

#include <troupe/error.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::data {

/// Goes through a CSV text row by row.
class csv_rows {
 public:
  csv_rows(std::string_view text, std::string file, char delimiter);

  /// Passes over lines, whatever they hold.
  void skip_lines(std::uint64_t count);

  /// Reads the next row; false at the end. An empty line is a row of one empty field.
  [[nodiscard]] expected<bool> next();

  /// Of the row that was read. Valid until the next one is.
  [[nodiscard]] const std::vector<std::string_view>& fields() const noexcept { return fields_; }

  /// The line on which the row begins, from 1.
  [[nodiscard]] std::uint64_t line() const noexcept { return line_of_row_; }

  /// "FILE:LINE: ", for messages.
  [[nodiscard]] std::string place() const { return file_ + ":" + std::to_string(line_of_row_) + ": "; }

  [[nodiscard]] std::size_t bytes_left() const noexcept { return static_cast<std::size_t>(end_ - at_); }

 private:
  [[nodiscard]] expected<std::string_view> quoted_field();
  [[nodiscard]] expected<std::string_view> plain_field();
  /// Whether a line break stands here; passes over it.
  [[nodiscard]] bool take_line_break() noexcept;

  const char* at_;
  const char* end_;
  std::string file_;
  char delimiter_;
  std::uint64_t line_ = 1;
  std::uint64_t line_of_row_ = 0;
  std::vector<std::string_view> fields_;
  /// The row's fields with doubled quotes. A deque: its elements stay where they are.
  std::deque<std::string> unescaped_;
};

/// A field for a message: in quotes, without control characters, cut off after 40 bytes.
[[nodiscard]] std::string show_field(std::string_view field);

} // namespace troupe::data
