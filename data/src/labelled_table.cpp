#include <troupe/data/labelled_table.hpp>

#include "csv_fields.hpp"
#include "csv_rows.hpp"
#include "file_bytes.hpp"

#include <troupe/data/exact_reduction.hpp>
#include <troupe/train_context.hpp>

#include <algorithm>
#include <cmath>
#include <fmt/format.h>
#include <numeric>
#include <set>
#include <unordered_set>
#include <utility>

namespace troupe::data {

namespace {

/// Whole numbers of at most so many different values are taken for classes.
constexpr std::size_t most_number_classes = 20;

/// Texts of more different values are no categories, if they are also more than half of the rows.
constexpr std::size_t always_categories = 50;

/// Beyond it, f32 cannot represent all whole numbers.
constexpr double largest_exact_float = 16'777'216;

/// What the fields of one column are.
class column_facts {
 public:
  void add(std::string_view field, bool is_missing) {
    ++rows_;
    if (is_missing) {
      ++missing_;
      return;
    }
    if (texts_.size() <= rows_ / 2 + always_categories)
      texts_.emplace(field);
    double value = 0;
    if (parse_number(field, value)) {
      ++numbers_;
      is_whole_ = is_whole_ && value == std::floor(value);
      is_large_ = is_large_ || (std::abs(value) > largest_exact_float && value == std::floor(value));
    } else if (often_missing(field)) {
      missing_texts_.emplace(trimmed(field));
    } else {
      has_texts_ = true;
    }
  }

  [[nodiscard]] bool is_number() const noexcept { return !has_texts_ && numbers_ > 0; }
  [[nodiscard]] bool is_empty() const noexcept { return !has_texts_ && numbers_ == 0; }
  /// Texts such as NA, which mean missing values if the other fields are numbers.
  [[nodiscard]] const std::set<std::string>& missing_texts() const noexcept { return missing_texts_; }
  /// As what it is: a class may be named "none".
  [[nodiscard]] bool lacks_values() const noexcept { return missing_ > 0 || (is_number() && !missing_texts_.empty()); }
  [[nodiscard]] std::size_t different() const noexcept { return texts_.size(); }
  [[nodiscard]] bool is_category() const noexcept {
    return texts_.size() <= always_categories || texts_.size() <= rows_ / 2;
  }
  [[nodiscard]] bool is_class() const noexcept {
    return !is_number() || (is_whole_ && texts_.size() <= most_number_classes);
  }
  [[nodiscard]] csv_type number_type() const noexcept { return is_large_ ? csv_type::f64 : csv_type::f32; }

 private:
  std::size_t rows_ = 0;
  std::size_t missing_ = 0;
  std::size_t numbers_ = 0;
  bool has_texts_ = false;
  bool is_whole_ = true;
  bool is_large_ = false;
  std::set<std::string> missing_texts_;
  /// Not complete once there are too many for categories.
  std::unordered_set<std::string> texts_;
};

struct file_facts {
  std::vector<std::string> names;
  std::vector<column_facts> columns;
};

expected<file_facts> survey(std::string_view text, const std::string& file, const csv_options& format) {
  auto rows = csv_rows{text, file, format.delimiter};
  rows.skip_lines(format.skip_lines);
  file_facts result;
  for (auto is_first = true;;) {
    TROUPE_TRY(auto more, rows.next());
    if (!more)
      return result;
    const auto& fields = rows.fields();
    if (fields.size() == 1 && fields.front().empty())
      continue;
    if (is_first)
      for (std::size_t i = 0; i < fields.size(); ++i)
        result.names.push_back(format.header ? std::string{fields[i]} : fmt::to_string(i));
    result.columns.resize(result.names.size());
    if (!std::exchange(is_first, false) || !format.header)
      // `read_csv` reports rows of another length.
      for (std::size_t i = 0; i < std::min(fields.size(), result.columns.size()); ++i)
        result.columns[i].add(fields[i], std::ranges::any_of(format.missing_texts, [&](const std::string& x) {
                                return x == trimmed(fields[i]);
                              }));
  }
}

tl::unexpected<error> refused(const std::string& file, const std::string& what) {
  return fail(errc::invalid_argument, fmt::format("{}: {}", file, what));
}

/// The declaration of the column to learn.
expected<csv_column> declare_label(const file_facts& facts, const std::string& file, const table_options& options) {
  const auto found = std::ranges::find(facts.names, options.label);
  if (options.label.empty() || found == facts.names.end())
    return refused(file, fmt::format("no column '{}' to learn (table_options::label): the file has {}", options.label,
                                     fmt::join(facts.names, ", ")));
  const auto& column = facts.columns[static_cast<std::size_t>(found - facts.names.begin())];
  if (column.is_empty())
    return refused(file, fmt::format("the column to learn, '{}', has no values", options.label));
  if (column.lacks_values())
    return refused(file,
                   fmt::format("the column to learn, '{}', is missing in some rows: remove these rows", options.label));
  const auto is_class = options.kind == label_kind::inferred ? column.is_class() : options.kind == label_kind::classes;
  if (!is_class && !column.is_number())
    return refused(file, fmt::format("the column to learn, '{}', holds texts, and amounts were asked for "
                                     "(table_options::kind)",
                                     options.label));
  if (is_class && !column.is_category())
    return refused(file, fmt::format("the column to learn, '{}', has {} different values or more, too many for "
                                     "classes (table_options::kind)",
                                     options.label, column.different()));
  return csv_column{"label", is_class ? csv_type::categorical : csv_type::f32, {options.label}, {}};
}

/// Declares all columns of the file that are not left out, and the label last.
expected<labelled_table> declare(const file_facts& facts, const std::string& file, const table_options& options) {
  labelled_table result;
  result.format = options.format;
  for (const auto& name : options.ignored)
    if (std::ranges::find(facts.names, name) == facts.names.end())
      return refused(file, fmt::format("no column '{}' to leave out (table_options::ignored): the file has {}", name,
                                       fmt::join(facts.names, ", ")));
  TROUPE_TRY(auto label, declare_label(facts, file, options));
  std::set<std::string> missing_texts;
  for (std::size_t i = 0; i < facts.names.size(); ++i) {
    const auto& name = facts.names[i];
    const auto& column = facts.columns[i];
    if (name == options.label || std::ranges::find(options.ignored, name) != options.ignored.end())
      continue;
    if (column.is_empty())
      return refused(file, fmt::format("column '{}' has no values: leave it out (table_options::ignored)", name));
    if (column.is_number()) {
      missing_texts.insert(column.missing_texts().begin(), column.missing_texts().end());
      result.numbers.push_back(name);
      result.format.columns.push_back({name, column.number_type(), {name}, {}});
      continue;
    }
    if (!column.is_category())
      return refused(file, fmt::format("column '{}' has {} different texts or more, nearly one for each row, so they "
                                       "are no categories: leave it out (table_options::ignored), or give a number in "
                                       "each row",
                                       name, column.different()));
    result.categories.push_back(name);
    result.format.columns.push_back({name, csv_type::categorical, {name}, {}});
  }
  if (result.format.columns.empty())
    return refused(file, "no column is left to learn from");
  result.format.columns.push_back(std::move(label));
  result.format.missing_texts.insert(result.format.missing_texts.end(), missing_texts.begin(), missing_texts.end());
  result.format.missing = missing_values::marked;
  return result;
}

/// A text that means a missing value in one column means it in all.
expected<void> check_labels(const labelled_table& table, const std::string& file) {
  if (!table.has_classes())
    return {};
  batch all;
  std::vector<std::uint64_t> samples(table.samples->size());
  std::iota(samples.begin(), samples.end(), std::uint64_t{0});
  TROUPE_TRY(table.samples->fetch(samples, all));
  if (std::ranges::find(all.values<std::int64_t>("label"), -1) != all.values<std::int64_t>("label").end())
    return refused(file,
                   fmt::format("in the column to learn, '{}', a class has a name that means a missing value in a "
                               "column of numbers ({}): rename it",
                               table.format.columns.back().from.front(), fmt::join(table.format.missing_texts, ", ")));
  return {};
}

} // namespace

expected<labelled_table> parse_table(std::string_view text, const std::string& file, const table_options& options) {
  if (!options.format.columns.empty())
    return refused(file, "table_options::format has columns: use read_csv, which takes declared columns");
  TROUPE_TRY(auto facts, survey(text, file, options.format));
  TROUPE_TRY(auto result, declare(facts, file, options));
  TROUPE_TRY(auto columns, parse_csv(text, file, result.format));
  TROUPE_TRY(result.samples, make_table(std::move(columns)));
  for (std::size_t i = 0; i < result.format.columns.size(); ++i)
    if (const auto& found = result.samples->columns()[i].categories)
      result.format.columns[i].categories = *found;
  TROUPE_TRY(check_labels(result, file));
  return result;
}

expected<labelled_table> read_table(const std::filesystem::path& path, const table_options& options) {
  TROUPE_TRY(auto content, open_bytes(path));
  return parse_table(content.text(), path.string(), options);
}

preprocessor_ptr make_inputs(const labelled_table& table) {
  std::vector<preprocessor_ptr> parts;
  if (!table.numbers.empty()) {
    parts.push_back(mean_imputer(table.numbers));
    parts.push_back(standard_scaler(table.numbers));
  }
  if (!table.categories.empty())
    parts.push_back(one_hot_encoder(table.categories, unknown_category::own_category));
  auto all = table.numbers;
  all.insert(all.end(), table.categories.begin(), table.categories.end());
  parts.push_back(column_join(std::move(all), "inputs"));
  if (!table.has_classes())
    parts.push_back(standard_scaler({"label"}));
  return chain(std::move(parts));
}

split_data_set prepare(train_context& ctx, const labelled_table& table, double validation_fraction,
                       std::string_view name) {
  auto parts = value_or_throw(split(table.samples, validation_fraction));
  const auto inputs = make_inputs(table);
  auto reduction = context_reduction{ctx};
  inputs->fit(*parts.training, reduction);
  inputs->track(ctx.state(), name);
  return {value_or_throw(transformed(std::move(parts.training), inputs)),
          value_or_throw(transformed(std::move(parts.validation), inputs))};
}

} // namespace troupe::data
