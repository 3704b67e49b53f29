#pragma once

#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {
class train_context;
}

/// Tables whose columns need not be declared: a program that learns one column of a CSV file from the others takes
/// thirty lines.
namespace troupe::data {

/// What the column to learn holds.
enum class label_kind : std::uint8_t {
  /// Texts, and whole numbers of at most 20 different values, are classes; other numbers are amounts.
  inferred,
  classes,
  amounts,
};

struct table_options {
  /// The column to learn.
  std::string label;
  label_kind kind = label_kind::inferred;
  /// Columns to leave out, such as row numbers and names.
  std::vector<std::string> ignored = {};
  /// The file's format. `columns` stays empty.
  csv_options format = {};
};

/// A CSV file whose columns were inferred.
struct labelled_table {
  /// One column for each of the file's, f32, or f64 for whole numbers beyond 2^24, or categorical; the column to learn
  /// is named "label".
  data_set_ptr samples;
  /// What was inferred, complete: `read_csv` reads other files of the same form with it, with the same categories.
  csv_options format;
  /// Columns of numbers and of categories, without the label.
  std::vector<std::string> numbers;
  std::vector<std::string> categories;

  /// Whether the label is a class.
  [[nodiscard]] bool has_classes() const { return samples->columns().back().categories != nullptr; }
};

/// Reads a table and infers its columns from all of their fields: a column is numbers if every field that is not
/// missing is one, and categories otherwise. Missing are empty fields, those of `format.missing_texts`, and NA, null
/// and similar ones in columns of numbers. Fails as `read_csv` does, and with `errc::invalid_argument`, naming it, for
/// a column of texts that are nearly all different, of missing fields alone, or that does not exist, and for a label
/// that is missing in some row.
[[nodiscard]] expected<labelled_table> read_table(const std::filesystem::path& path, const table_options& options);

/// The same from memory. `file` is the name used in messages.
[[nodiscard]] expected<labelled_table> parse_table(std::string_view text, const std::string& file,
                                                   const table_options& options);

/// Makes what a model takes, not fitted yet: numbers are completed by their mean and scaled to mean 0 and variance 1,
/// categories become vectors of zeros and a one (with an entry for unknown ones), and all of it one column "inputs",
/// f32. A label that is an amount is scaled, too.
[[nodiscard]] preprocessor_ptr make_inputs(const labelled_table& table);

/// Splits a table as `split` does, fits `make_inputs` on the training part, tracks what it learned under `name`, and
/// transforms both parts. Collective, and called once, before the loop. Throws `exception`.
[[nodiscard]] split_data_set prepare(train_context& ctx, const labelled_table& table, double validation_fraction,
                                     std::string_view name = "inputs");

} // namespace troupe::data
