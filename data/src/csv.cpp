#include <troupe/data/csv.hpp>

#include "csv_fields.hpp"
#include "csv_rows.hpp"
#include "file_bytes.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <functional>
#include <limits>
#include <unordered_map>
#include <utility>
#include <variant>

namespace troupe::data {

namespace {

std::string_view name_of(csv_type type) {
  switch (type) {
  case csv_type::f32:
    return "f32";
  case csv_type::f64:
    return "f64";
  case csv_type::i64:
    return "i64";
  case csv_type::categorical:
    return "a known category";
  }
  return "value";
}

std::string advice_on_missing(std::string_view field) {
  return fmt::format(
      "; if it means that the value is missing, name it in csv_options::missing_texts ({{\"\", \"{}\"}}) and "
      "read with missing_values::marked",
      trimmed(field));
}

struct text_hash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const noexcept { return std::hash<std::string_view>{}(text); }
};

/// A column under construction.
class column_builder {
 public:
  column_builder(const csv_column& wanted, std::size_t width) : wanted_(wanted), width_(width) {
    if (wanted.type == csv_type::f32)
      values_ = std::vector<float>{};
    else if (wanted.type == csv_type::f64)
      values_ = std::vector<double>{};
    else
      values_ = std::vector<std::int64_t>{};
    for (const auto& category : wanted.categories)
      known_.emplace(category, static_cast<std::int64_t>(known_.size()));
  }

  /// False if the field does not have the column's type.
  bool add(std::string_view field) {
    if (wanted_.type == csv_type::categorical)
      return add_category(field);
    return std::visit([&](auto& values) { return parse_number(field, values.emplace_back()); }, values_);
  }

  /// False if the column's type cannot represent a missing value.
  bool add_missing() {
    if (wanted_.type == csv_type::categorical)
      std::get<std::vector<std::int64_t>>(values_).push_back(-1);
    else if (wanted_.type == csv_type::i64)
      return false;
    else if (wanted_.type == csv_type::f32)
      std::get<std::vector<float>>(values_).push_back(std::numeric_limits<float>::quiet_NaN());
    else
      std::get<std::vector<double>>(values_).push_back(std::numeric_limits<double>::quiet_NaN());
    return true;
  }

  [[nodiscard]] std::string expected_text() const {
    if (wanted_.type != csv_type::categorical)
      return "a finite number";
    return fmt::format("one of the {} given categories", wanted_.categories.size());
  }

  [[nodiscard]] column finish() && {
    auto categories = wanted_.type == csv_type::categorical ? sort_categories() : category_names{};
    auto shape = width_ > 1 ? std::vector<std::uint64_t>{width_} : std::vector<std::uint64_t>{};
    return std::visit(
        [&](auto& values) { return make_column(wanted_.name, std::move(values), std::move(shape), categories); },
        values_);
  }

 private:
  bool add_category(std::string_view field) {
    auto found = known_.find(field);
    if (found == known_.end()) {
      if (!wanted_.categories.empty())
        return false;
      found = known_.emplace(std::string{field}, static_cast<std::int64_t>(known_.size())).first;
    }
    std::get<std::vector<std::int64_t>>(values_).push_back(found->second);
    return true;
  }

  /// Renumbers the categories from first appearance to byte order.
  category_names sort_categories() {
    if (!wanted_.categories.empty())
      return std::make_shared<const std::vector<std::string>>(wanted_.categories);
    std::vector<std::pair<std::string, std::int64_t>> entries{known_.begin(), known_.end()};
    std::ranges::sort(entries);
    std::vector<std::int64_t> code(entries.size());
    std::vector<std::string> names;
    for (auto& [name, old] : entries) {
      code[static_cast<std::size_t>(old)] = static_cast<std::int64_t>(names.size());
      names.push_back(std::move(name));
    }
    for (auto& value : std::get<std::vector<std::int64_t>>(values_))
      if (value >= 0)
        value = code[static_cast<std::size_t>(value)];
    return std::make_shared<const std::vector<std::string>>(std::move(names));
  }

  const csv_column& wanted_;
  std::size_t width_;
  std::variant<std::vector<float>, std::vector<double>, std::vector<std::int64_t>> values_;
  std::unordered_map<std::string, std::int64_t, text_hash, std::equal_to<>> known_;
};

/// Which field of a row belongs to which column, in the order of the columns.
struct target {
  std::size_t field;
  std::size_t column;
};

std::vector<std::string> names_of_fields(const std::vector<std::string_view>& first_row, bool header) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < first_row.size(); ++i)
    result.push_back(header ? std::string{first_row[i]} : fmt::to_string(i));
  return result;
}

expected<std::size_t> find_field(const std::vector<std::string>& names, const std::string& name,
                                 const std::string& file) {
  auto found = std::ranges::find(names, name);
  if (found == names.end()) {
    auto all = std::vector<std::string>{};
    for (const auto& each : names)
      all.push_back(show_field(each));
    return fail(errc::invalid_argument,
                fmt::format("{}: no column '{}': the file has {}", file, name, fmt::join(all, ", ")));
  }
  if (std::find(found + 1, names.end(), name) != names.end())
    return fail(errc::invalid_argument, fmt::format("{}: two columns are named '{}'", file, name));
  return static_cast<std::size_t>(found - names.begin());
}

class table_builder {
 public:
  table_builder(const std::string& file, const csv_options& options) : file_(file), options_(options) {}

  expected<void> begin(const std::vector<std::string_view>& first_row) {
    names_ = names_of_fields(first_row, options_.header);
    columns_ = options_.columns;
    if (columns_.empty())
      for (const auto& name : names_)
        columns_.push_back({name, csv_type::f32, {}, {}, {}});
    for (auto& wanted : columns_) {
      if (wanted.from.empty())
        wanted.from = {wanted.name};
      for (const auto& name : wanted.from) {
        TROUPE_TRY(auto field, find_field(names_, name, file_));
        targets_.push_back({field, static_cast<std::size_t>(&wanted - columns_.data())});
      }
    }
    for (const auto& wanted : columns_)
      builders_.emplace_back(wanted, wanted.from.size());
    return {};
  }

  [[nodiscard]] std::size_t fields() const noexcept { return names_.size(); }

  expected<void> add(const csv_rows& row) {
    if (row.fields().size() != names_.size())
      return fail(errc::damaged, fmt::format("{}{} fields, expected {} as in the first row", row.place(),
                                             row.fields().size(), names_.size()));
    for (auto [field, column] : targets_) {
      auto value = row.fields()[field];
      auto& builder = builders_[column];
      if (is_missing(value, columns_[column])) {
        if (options_.missing == missing_values::refused || !builder.add_missing())
          return fail(errc::damaged,
                      fmt::format("{}column {}: {} means a missing value: {}", row.place(), show_field(names_[field]),
                                  show_field(value), advice(columns_[column].type)));
      } else if (!builder.add(value)) {
        return fail(errc::damaged,
                    fmt::format("{}column {}: {} is not {}: expected {}{}", row.place(), show_field(names_[field]),
                                show_field(value), name_of(columns_[column].type), builder.expected_text(),
                                often_missing(value) ? advice_on_missing(value) : std::string{}));
      }
    }
    return {};
  }

  [[nodiscard]] std::vector<column> finish() && {
    std::vector<column> result;
    for (auto& builder : builders_)
      result.push_back(std::move(builder).finish());
    return result;
  }

 private:
  [[nodiscard]] bool is_missing(std::string_view field, const csv_column& column) const {
    const auto text = trimmed(field);
    return std::ranges::find(options_.missing_texts, text) != options_.missing_texts.end() ||
           std::ranges::find(column.missing_texts, text) != column.missing_texts.end();
  }

  [[nodiscard]] std::string advice(csv_type type) const {
    if (type == csv_type::i64)
      return "an i64 column cannot represent it; make the column f64, or complete the file";
    return "complete the file, or read with missing_values::marked";
  }

  const std::string& file_;
  const csv_options& options_;
  std::vector<std::string> names_;
  std::vector<csv_column> columns_;
  std::vector<target> targets_;
  std::vector<column_builder> builders_;
};

expected<void> check(const csv_options& options) {
  if (options.delimiter == '"' || options.delimiter == '\n' || options.delimiter == '\r')
    return fail(errc::invalid_argument, "a quote or a line break cannot be the delimiter of a CSV file");
  for (const auto& column : options.columns) {
    auto names = column.categories;
    std::ranges::sort(names);
    if (auto twice = std::ranges::adjacent_find(names); twice != names.end())
      return fail(errc::invalid_argument,
                  fmt::format("column '{}': category '{}' is given twice", column.name, *twice));
  }
  return {};
}

} // namespace

expected<std::vector<column>> parse_csv(std::string_view text, const std::string& file, const csv_options& options) {
  TROUPE_TRY(check(options));
  auto rows = csv_rows{text, file, options.delimiter};
  rows.skip_lines(options.skip_lines);
  auto table = table_builder{file, options};
  auto begun = false;
  for (;;) {
    TROUPE_TRY(auto more, rows.next());
    if (!more)
      break;
    auto empty_line = rows.fields().size() == 1 && rows.fields().front().empty();
    if (empty_line && (!begun || table.fields() > 1))
      continue;
    auto is_header = !begun && options.header;
    if (!begun) {
      TROUPE_TRY(table.begin(rows.fields()));
      begun = true;
    }
    if (is_header)
      continue;
    TROUPE_TRY(table.add(rows));
  }
  if (!begun)
    return fail(errc::damaged, fmt::format("{}: it has no rows{}", file,
                                           options.header ? ", not even the one with column names" : ""));
  return std::move(table).finish();
}

expected<std::vector<column>> read_csv(const std::filesystem::path& path, const csv_options& options) {
  TROUPE_TRY(auto content, open_bytes(path));
  return parse_csv(content.text(), path.string(), options);
}

} // namespace troupe::data
