#pragma once

#include <troupe/error.hpp>

#include <cstdint>
#include <deque>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::data {

/// Reads a CSV text row by row.
class csv_rows {
 public:
  csv_rows(std::string_view text, std::string file, char delimiter);

  /// Skips lines without parsing them.
  void skip_lines(std::uint64_t count);

  /// Reads the next row; false at the end. An empty line is a row of one empty field.
  [[nodiscard]] expected<bool> next();

  /// The current row's fields. Valid until the next row is read.
  [[nodiscard]] const std::vector<std::string_view>& fields() const noexcept { return fields_; }

  /// The line on which the row begins, from 1.
  [[nodiscard]] std::uint64_t line() const noexcept { return line_of_row_; }

  /// "FILE:LINE: ", for messages.
  [[nodiscard]] std::string place() const { return fmt::format("{}:{}: ", file_, line_of_row_); }

 private:
  [[nodiscard]] expected<std::string_view> quoted_field();
  [[nodiscard]] expected<std::string_view> plain_field();
  /// Whether there is a line break here; skips it.
  [[nodiscard]] bool take_line_break() noexcept;

  const char* at_;
  const char* end_;
  std::string file_;
  char delimiter_;
  std::uint64_t line_ = 1;
  std::uint64_t line_of_row_ = 0;
  std::vector<std::string_view> fields_;
  /// The row's fields with doubled quotes. A deque, because its elements do not move.
  std::deque<std::string> unescaped_;
};

/// Formats a field for a message: quoted, without control characters, truncated after 40 bytes.
[[nodiscard]] std::string show_field(std::string_view field);

} // namespace troupe::data
