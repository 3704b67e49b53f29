#pragma once

#include <troupe/data/csv.hpp>
#include <troupe/data/data_set.hpp>
#include <troupe/data/preprocessor.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {
class train_context;
}

/// Tables whose columns need not be declared: a program that learns one column of a CSV file from the others takes
/// fifty lines (apps/examples/learn_table.cpp).
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
  /// Columns of categories, whatever they look like, such as postal codes.
  std::vector<std::string> categories = {};
  /// The file's format. `columns` stays empty.
  csv_options format = {};
  /// Called from time to time while the file is looked through, so that a worker that reads for minutes is not taken
  /// for a hang: `[&] { ctx.heartbeat(); }`. May be empty.
  std::function<void()> heartbeat = {};
};

/// A CSV file whose columns were inferred.
struct labelled_table {
  /// One column for each of the file's: f32, or f64 for numbers beyond 2^24 or out of the range of f32, or categorical.
  /// The column to learn is the last, and named "label".
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
/// missing is one, and categories otherwise. Missing are empty fields and those of `format.missing_texts`, and in
/// columns of numbers NA, null and similar ones. Fails as `read_csv` does, and with `errc::invalid_argument`, naming
/// it, for a column of texts that are nearly all different, or of numbers with a few texts among them; of missing
/// fields alone; or that does not exist; and for a label that is missing in some row.
[[nodiscard]] expected<labelled_table> read_table(const std::filesystem::path& path, const table_options& options);

/// The same from memory. `file` is the name used in messages.
[[nodiscard]] expected<labelled_table> parse_table(std::string_view text, const std::string& file,
                                                   const table_options& options);

/// Makes what a model takes, not fitted yet: numbers are scaled to mean 0 and variance 1 and completed by their mean,
/// categories become vectors of zeros and a one (with an entry for unknown ones), and all of it one column "inputs",
/// f32.
[[nodiscard]] preprocessor_ptr make_inputs(const labelled_table& table);

/// Makes the scaling of a label that is an amount, not fitted yet, whose inverse turns predictions into amounts. Null
/// for classes.
[[nodiscard]] preprocessor_ptr make_label_scaler(const labelled_table& table);

/// The name under which `prepare` tracks the label's scaler.
[[nodiscard]] std::string label_scaler_name(std::string_view inputs);

/// Splits a table as `split` does, fits `make_inputs` and `make_label_scaler` on the training part, tracks what they
/// learned (the inputs under `name`), and transforms both parts. Collective, and called once, before the loop. Throws
/// `exception`. `inference::load_table_predictor` predicts with what was learned.
[[nodiscard]] split_data_set prepare(train_context& ctx, const labelled_table& table, double validation_fraction,
                                     std::string_view name = "inputs");

} // namespace troupe::data
