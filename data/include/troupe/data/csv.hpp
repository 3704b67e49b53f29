#pragma once

#include <troupe/data/column.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::data {

/// What the fields of a CSV column are.
enum class csv_type : std::uint8_t {
  f32,
  f64,
  i64,
  /// Texts. Become i64 codes, the numbers of the texts in the order of their bytes: the same in whatever order they
  /// stand in the file.
  categorical,
};

/// A column that is made of a CSV file's.
struct csv_column {
  std::string name;
  csv_type type = csv_type::f32;
  /// The file's columns: their names in the header, or their numbers from 0 where there is none. Empty is the one of
  /// the same name. Several become a vector: the sample's shape is then {from.size()}.
  std::vector<std::string> from;
  /// The categories, where they are known: code i is `categories[i]`, and any other text is an error. Empty collects
  /// them from the file. Give a validation file those of the training file.
  std::vector<std::string> categories;
};

/// What becomes of a field that is missing.
enum class missing_values : std::uint8_t {
  /// An error that names the field.
  refused,
  /// NaN in f32 and f64, the code -1 in a categorical column; still an error in i64.
  marked,
};

struct csv_options {
  /// Which columns to make, in this order. Empty makes an f32 of each.
  std::vector<csv_column> columns;
  char delimiter = ',';
  /// Whether the first row names the columns.
  bool header = true;
  /// Lines in front of everything that are no part of the table.
  std::uint64_t skip_lines = 0;
  /// The fields that stand for a missing value, spaces around them left out.
  std::vector<std::string> missing_texts = {""};
  missing_values missing = missing_values::refused;
};

/// Reads a table of RFC 4180: fields in quotes may hold delimiters, line breaks and doubled quotes; lines end with LF
/// or CRLF. A byte order mark and empty lines (in files of several columns) are passed over; spaces around numbers,
/// too. Parsed once, and held in memory as columns. Fails with `errc::not_found` or `errc::io_error`; with
/// `errc::invalid_argument` for a column that there is not; with `errc::damaged` for a row of another length, a quote
/// in the wrong place or a field that is not what the column says: "points.csv:17: column 'x': 'abc' is no f32 ...".
[[nodiscard]] expected<std::vector<column>> read_csv(const std::filesystem::path& path,
                                                     const csv_options& options = {});

/// The same from memory. `file` stands in messages.
[[nodiscard]] expected<std::vector<column>> parse_csv(std::string_view text, const std::string& file,
                                                      const csv_options& options = {});

} // namespace troupe::data
