#include <troupe/data/labelled_table.hpp>

#include "csv_fields.hpp"
#include "csv_rows.hpp"
#include "file_bytes.hpp"

#include <troupe/data/exact_reduction.hpp>
#include <troupe/train_context.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#include <utility>

namespace troupe::data {

namespace {

/// Whole numbers of at most so many different values are taken for classes.
constexpr std::size_t most_number_classes = 20;

/// Texts of more different values are no categories, if they are also more than half of the rows.
constexpr std::size_t always_categories = 50;

/// Fewer different fields than these are counted in a column of numbers.
constexpr std::size_t most_counted_numbers = 1000;

/// Beyond it, f32 does not tell neighbouring whole numbers apart.
constexpr double largest_exact_float = 16'777'216;

bool fits_float(double value) {
  const auto size = std::abs(value);
  return size == 0 || (size <= largest_exact_float && size >= static_cast<double>(std::numeric_limits<float>::min()));
}

/// What the fields of one column are.
class column_facts {
 public:
  void add(std::string_view field, bool is_missing, std::uint64_t line) {
    ++rows_;
    if (is_missing) {
      ++missing_;
      return;
    }
    double value = 0;
    if (parse_number(field, value)) {
      ++numbers_;
      is_whole_ = is_whole_ && value == std::floor(value);
      fits_float_ = fits_float_ && fits_float(value);
      note_spelling(value, field);
    } else if (often_missing(field)) {
      ++missing_numbers_;
      missing_texts_.emplace(trimmed(field));
    } else if (texts_++ == 0) {
      first_text_ = field;
      line_of_text_ = line;
    }
    if (texts_ > 0 || different_.size() < most_counted_numbers)
      different_.insert(std::hash<std::string_view>{}(field));
  }

  [[nodiscard]] bool is_number() const noexcept { return texts_ == 0 && numbers_ > 0; }
  [[nodiscard]] bool is_empty() const noexcept { return texts_ == 0 && numbers_ == 0; }
  /// Numbers, but for a few fields: these are more probably damaged than categories.
  [[nodiscard]] bool is_nearly_number() const noexcept { return texts_ > 0 && numbers_ >= 9 * texts_; }
  /// The first field that is not a number, and its line.
  [[nodiscard]] const std::string& first_text() const noexcept { return first_text_; }
  [[nodiscard]] std::uint64_t line_of_text() const noexcept { return line_of_text_; }
  /// Texts such as NA, which mean missing values if the other fields are numbers.
  [[nodiscard]] const std::set<std::string>& missing_texts() const noexcept { return missing_texts_; }
  /// As what it is: a class may be named "none".
  [[nodiscard]] bool lacks_values() const noexcept { return missing_ > 0 || (is_number() && missing_numbers_ > 0); }
  [[nodiscard]] std::size_t different() const noexcept { return different_.size(); }
  [[nodiscard]] bool is_category() const noexcept {
    return different_.size() <= always_categories || different_.size() <= rows_ / 2;
  }
  [[nodiscard]] bool is_class() const noexcept {
    return !is_number() || (is_whole_ && different_.size() <= most_number_classes);
  }
  [[nodiscard]] csv_type number_type() const noexcept { return fits_float_ ? csv_type::f32 : csv_type::f64; }
  /// Two fields that are the same number, if there are any: "1" and "1.0".
  [[nodiscard]] const std::optional<std::pair<std::string, std::string>>& two_spellings() const noexcept {
    return two_spellings_;
  }

 private:
  void note_spelling(double value, std::string_view field) {
    if (spellings_.size() > most_number_classes || two_spellings_)
      return;
    const auto [found, is_new] = spellings_.try_emplace(value, field);
    if (!is_new && found->second != field)
      two_spellings_.emplace(found->second, field);
  }

  std::size_t rows_ = 0;
  std::size_t missing_ = 0;
  std::size_t missing_numbers_ = 0;
  std::size_t numbers_ = 0;
  std::size_t texts_ = 0;
  bool is_whole_ = true;
  bool fits_float_ = true;
  std::string first_text_;
  std::uint64_t line_of_text_ = 0;
  std::set<std::string> missing_texts_;
  std::map<double, std::string> spellings_;
  std::optional<std::pair<std::string, std::string>> two_spellings_;
  /// Hashes of fields; not complete for numbers.
  std::unordered_set<std::size_t> different_;
};

struct file_facts {
  std::vector<std::string> names;
  std::vector<column_facts> columns;
  bool has_rows = false;

  [[nodiscard]] const column_facts* find(const std::string& name) const {
    const auto found = std::ranges::find(names, name);
    return found == names.end() ? nullptr : &columns[static_cast<std::size_t>(found - names.begin())];
  }
};

void add_row(const csv_rows& row, const csv_options& format, file_facts& facts) {
  facts.has_rows = true;
  // `read_csv` reports rows of another length.
  for (std::size_t i = 0; i < std::min(row.fields().size(), facts.columns.size()); ++i) {
    const auto field = row.fields()[i];
    const auto text = trimmed(field);
    const auto is_missing = text.empty() || std::ranges::find(format.missing_texts, text) != format.missing_texts.end();
    facts.columns[i].add(field, is_missing, row.line());
  }
}

expected<file_facts> survey(std::string_view text, const std::string& file, const table_options& options) {
  constexpr std::uint64_t rows_per_heartbeat = 65'536;
  const auto& format = options.format;
  auto rows = csv_rows{text, file, format.delimiter};
  rows.skip_lines(format.skip_lines);
  file_facts result;
  for (std::uint64_t count = 0;; ++count) {
    TROUPE_TRY(auto more, rows.next());
    if (!more)
      return result;
    if (options.heartbeat && count % rows_per_heartbeat == 0)
      options.heartbeat();
    const auto& fields = rows.fields();
    if (fields.size() == 1 && fields.front().empty())
      continue;
    const auto is_first = result.names.empty();
    if (is_first) {
      for (std::size_t i = 0; i < fields.size(); ++i)
        result.names.push_back(format.header ? std::string{fields[i]} : fmt::to_string(i));
      result.columns.resize(result.names.size());
    }
    if (!is_first || !format.header)
      add_row(rows, format, result);
  }
}

tl::unexpected<error> refused(const std::string& file, const std::string& what) {
  return fail(errc::invalid_argument, fmt::format("{}: {}", file, what));
}

/// The declaration of the column to learn.
expected<csv_column> declare_label(const file_facts& facts, const std::string& file, const table_options& options) {
  const auto* column = facts.find(options.label);
  const auto about = fmt::format("the column to learn, '{}',", options.label);
  if (column == nullptr)
    return refused(file, fmt::format("no column '{}' to learn (table_options::label): the file has {}", options.label,
                                     fmt::join(facts.names, ", ")));
  if (column->is_empty())
    return refused(file, about + " has no values");
  if (column->lacks_values())
    return refused(file, about + " is missing in some rows: remove these rows");
  const auto is_class = options.kind == label_kind::inferred ? column->is_class() : options.kind == label_kind::classes;
  if (!is_class && !column->is_number())
    return refused(file, about + " holds texts, and amounts were asked for (table_options::kind)");
  if (is_class && !column->is_category())
    return refused(file, fmt::format("{} has {} different values or more, too many for classes (table_options::kind)",
                                     about, column->different()));
  if (is_class && column->is_number() && column->two_spellings())
    return refused(file, fmt::format("{} has '{}' and '{}', which are one number: write it in one way", about,
                                     column->two_spellings()->first, column->two_spellings()->second));
  return csv_column{"label", is_class ? csv_type::categorical : column->number_type(), {options.label}, {}, {}};
}

expected<csv_column> declare_input(const std::string& name, const column_facts& column, const std::string& file,
                                   const table_options& options) {
  if (name == "label")
    return refused(file, "column 'label' is not the column to learn, which has this name in the data set: rename it in "
                         "the file, or leave it out (table_options::ignored)");
  const auto is_given = std::ranges::find(options.categories, name) != options.categories.end();
  if (column.is_empty() && !is_given)
    return refused(file, fmt::format("column '{}' has no values: leave it out (table_options::ignored)", name));
  if (column.is_number() && !is_given)
    return csv_column{
        name, column.number_type(), {name}, {}, {column.missing_texts().begin(), column.missing_texts().end()}};
  if (column.is_nearly_number() && !is_given)
    return refused(fmt::format("{}:{}", file, column.line_of_text()),
                   fmt::format("column '{}': {} is no number, and nearly all others are: mend the file, or declare the "
                               "column in table_options::categories",
                               name, show_field(column.first_text())));
  if (!column.is_category())
    return refused(file, fmt::format("column '{}' has {} different texts, nearly one for each row, so they are no "
                                     "categories: leave it out (table_options::ignored). The first that is no number "
                                     "is {} in line {}",
                                     name, column.different(), show_field(column.first_text()), column.line_of_text()));
  return csv_column{name, csv_type::categorical, {name}, {}, {}};
}

expected<void> check_names(const std::vector<std::string>& names, const file_facts& facts, const std::string& file,
                           const char* option) {
  for (const auto& name : names)
    if (facts.find(name) == nullptr)
      return refused(file, fmt::format("no column '{}' (table_options::{}): the file has {}", name, option,
                                       fmt::join(facts.names, ", ")));
  return {};
}

/// Declares all columns of the file that are not left out, and the label last.
expected<labelled_table> declare(const file_facts& facts, const std::string& file, const table_options& options) {
  if (!facts.has_rows)
    return fail(errc::damaged, fmt::format("{}: it has no rows", file));
  TROUPE_TRY(check_names(options.ignored, facts, file, "ignored"));
  TROUPE_TRY(check_names(options.categories, facts, file, "categories"));
  labelled_table result;
  result.format = options.format;
  TROUPE_TRY(auto label, declare_label(facts, file, options));
  for (std::size_t i = 0; i < facts.names.size(); ++i) {
    const auto& name = facts.names[i];
    if (name == options.label || std::ranges::find(options.ignored, name) != options.ignored.end())
      continue;
    TROUPE_TRY(auto column, declare_input(name, facts.columns[i], file, options));
    (column.type == csv_type::categorical ? result.categories : result.numbers).push_back(name);
    result.format.columns.push_back(std::move(column));
  }
  if (result.format.columns.empty())
    return refused(file, "no column is left to learn from");
  result.format.columns.push_back(std::move(label));
  if (std::ranges::find(result.format.missing_texts, "") == result.format.missing_texts.end())
    result.format.missing_texts.emplace_back();
  result.format.missing = missing_values::marked;
  return result;
}

} // namespace

expected<labelled_table> parse_table(std::string_view text, const std::string& file, const table_options& options) {
  if (!options.format.columns.empty())
    return refused(file, "table_options::format has columns: use read_csv, which takes declared columns");
  TROUPE_TRY(auto facts, survey(text, file, options));
  TROUPE_TRY(auto result, declare(std::exchange(facts, {}), file, options));
  TROUPE_TRY(auto columns, parse_csv(text, file, result.format));
  TROUPE_TRY(result.samples, make_table(std::move(columns)));
  for (std::size_t i = 0; i < result.format.columns.size(); ++i)
    if (const auto& found = result.samples->columns()[i].categories)
      result.format.columns[i].categories = *found;
  return result;
}

expected<labelled_table> read_table(const std::filesystem::path& path, const table_options& options) {
  TROUPE_TRY(auto content, open_bytes(path));
  return parse_table(content.text(), path.string(), options);
}

preprocessor_ptr make_inputs(const labelled_table& table) {
  std::vector<preprocessor_ptr> parts;
  if (!table.numbers.empty()) {
    // In this order: the imputer's f32 cannot hold large numbers that are not scaled yet.
    parts.push_back(standard_scaler(table.numbers));
    parts.push_back(mean_imputer(table.numbers));
  }
  if (!table.categories.empty())
    parts.push_back(one_hot_encoder(table.categories, unknown_category::own_category));
  auto all = table.numbers;
  all.insert(all.end(), table.categories.begin(), table.categories.end());
  parts.push_back(column_join(std::move(all), "inputs"));
  return chain(std::move(parts));
}

preprocessor_ptr make_label_scaler(const labelled_table& table) {
  return table.has_classes() ? nullptr : standard_scaler({"label"});
}

std::string label_scaler_name(std::string_view inputs) {
  return fmt::format("{} label", inputs);
}

split_data_set prepare(train_context& ctx, const labelled_table& table, double validation_fraction,
                       std::string_view name) {
  auto parts = value_or_throw(split(table.samples, validation_fraction));
  auto reduction = context_reduction{ctx};
  const auto apply = [&](const preprocessor_ptr& how, std::string_view tracked) {
    how->fit(*parts.training, reduction);
    how->track(ctx.state(), tracked);
    parts = {value_or_throw(transformed(std::move(parts.training), how)),
             value_or_throw(transformed(std::move(parts.validation), how))};
  };
  apply(make_inputs(table), name);
  if (const auto label = make_label_scaler(table))
    apply(label, label_scaler_name(name));
  return parts;
}

} // namespace troupe::data
