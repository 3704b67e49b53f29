#pragma once

#include <troupe/data/column.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace troupe::data {

/// The type of a CSV column's fields.
enum class csv_type : std::uint8_t {
  f32,
  f64,
  i64,
  /// Texts, converted to i64 codes. Codes number the texts in byte order, independently of their order in the file.
  categorical,
};

/// A column to make from a CSV file.
struct csv_column {
  std::string name = {};
  csv_type type = csv_type::f32;
  /// The file's columns: by name if the file has a header, otherwise by number from 0. Empty means the column with the
  /// same name. Several columns form a vector: the sample's shape is then {from.size()}.
  std::vector<std::string> from = {};
  /// The categories, if known: code i means `categories[i]`, and any other text is an error. If empty, they are
  /// collected from the file. Give a validation file the training file's categories.
  std::vector<std::string> categories = {};
  /// Fields that mean a missing value in this column, besides `csv_options::missing_texts`.
  std::vector<std::string> missing_texts = {};
};

/// What to do with a missing field.
enum class missing_values : std::uint8_t {
  /// Fail with an error that names the field.
  refused,
  /// Use NaN in f32 and f64, and the code -1 in a categorical column; still an error in i64.
  marked,
};

struct csv_options {
  /// The columns to make, in this order. Empty makes an f32 column of each.
  std::vector<csv_column> columns = {};
  char delimiter = ',';
  /// Whether the first row holds the column names.
  bool header = true;
  /// Lines to skip at the beginning of the file.
  std::uint64_t skip_lines = 0;
  /// The fields that mean a missing value, compared without surrounding spaces.
  std::vector<std::string> missing_texts = {""};
  missing_values missing = missing_values::refused;
};

/// Reads a table in the format of RFC 4180: quoted fields may hold delimiters, line breaks and doubled quotes; lines
/// end with LF or CRLF. A byte order mark, empty lines (in files with several columns) and spaces around numbers are
/// skipped. Parsed once, and held in memory as columns. Fails with `errc::not_found` or `errc::io_error`; with
/// `errc::invalid_argument` for a column that does not exist; with `errc::damaged` for a row with another number of
/// fields, a misplaced quote, or a field of the wrong type: "points.csv:17: column 'x': 'abc' is not f32 ...".
[[nodiscard]] expected<std::vector<column>> read_csv(const std::filesystem::path& path,
                                                     const csv_options& options = {});

/// The same from memory. `file` is the name used in messages.
[[nodiscard]] expected<std::vector<column>> parse_csv(std::string_view text, const std::string& file,
                                                      const csv_options& options = {});

} // namespace troupe::data
