#include "decisions/number_writer.hpp"
#include "decisions/rows.hpp"

#include <algorithm>
#include <fmt/format.h>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

namespace troupe::serving {

namespace {

/// Receives the parts of a JSON document as they are parsed, and appends the values to the columns.
class row_reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  row_reader(const input_table& table, std::uint64_t max_rows, std::uint64_t expected_rows)
      : table_(table), inputs_(table.columns()), max_rows_(max_rows) {
    result_.columns.resize(inputs_.size());
    // Takes no memory before it is written to, and none twice.
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      result_.columns[i].reserve(expected_rows * inputs_[i].size_bytes());
  }

  [[nodiscard]] expected<row_values> finish() && {
    if (error_)
      return fail(std::move(*error_));
    if (!has_inputs_)
      return fail(errc::invalid_argument, R"(the body has no "inputs": send {"inputs": [row, ...]})");
    return std::move(result_);
  }

  bool null() override {
    return scalar([this](const data::column_spec& column, std::vector<std::byte>& target) {
      if (column.categories != nullptr)
        return append_number(target, dtype::i64, std::int64_t{-1});
      return is_float(column.type) ? append_number(target, column.type, std::numeric_limits<double>::quiet_NaN())
                                   : refuse("null", "it has no missing values");
    });
  }
  bool boolean(bool value) override {
    return scalar([&](const data::column_spec& column, std::vector<std::byte>& target) {
      return append_number(target, column.type, std::int64_t{value}) || refuse(value ? "true" : "false");
    });
  }
  bool number_integer(std::int64_t value) override { return number(value); }
  bool number_unsigned(std::uint64_t value) override { return number(value); }
  bool number_float(double value, const std::string&) override { return number(value); }
  bool string(std::string& value) override {
    return scalar([&](const data::column_spec& column, std::vector<std::byte>& target) {
      if (column.categories == nullptr)
        return refuse("a text", "it takes numbers");
      return append_number(target, dtype::i64, table_.category(column_, value));
    });
  }
  bool binary(nlohmann::json::binary_t&) override { return broken("JSON has no binary values"); }

  bool start_object(std::size_t) override {
    switch (stage_) {
    case stage::start:
      stage_ = stage::document;
      return true;
    case stage::rows:
      stage_ = stage::row_object;
      return begin_row();
    case stage::document:
    case stage::row_object:
    case stage::row_array:
    case stage::value:
      break;
    }
    return broken(fmt::format("{}an object stands where {} belongs", place(), expectation()));
  }

  bool key(std::string& name) override {
    if (stage_ == stage::document) {
      if (name != "inputs")
        return broken(fmt::format(R"(unknown field "{}": the body is {{"inputs": [row, ...]}})", shortened(name)));
      if (has_inputs_)
        return broken(R"("inputs" is given twice)");
      return true;
    }
    const auto found = table_.find(name);
    if (!found)
      return broken(
          fmt::format("row {}: the model has no input '{}': it takes {}", result_.rows, shortened(name), names()));
    column_ = *found;
    if (given_[column_])
      return broken(fmt::format("row {}: input '{}' is given twice", result_.rows, name));
    return true;
  }

  bool end_object() override {
    if (stage_ == stage::document)
      return true;
    if (const auto missing = std::ranges::find(given_, false); missing != given_.end())
      return broken(fmt::format("row {}: input '{}' is missing: the model takes {}", result_.rows,
                                inputs_[static_cast<std::size_t>(missing - given_.begin())].name, names()));
    return end_row();
  }

  bool start_array(std::size_t) override {
    switch (stage_) {
    case stage::start:
      break;
    case stage::document:
      has_inputs_ = true;
      stage_ = stage::rows;
      return true;
    case stage::rows:
      if (!begin_row())
        return false;
      if (inputs_.size() > 1) {
        stage_ = stage::row_array;
        column_ = 0;
        return true;
      }
      column_ = 0;
      return begin_value(stage::rows);
    case stage::row_array:
      if (column_ == inputs_.size())
        return too_many_values();
      return begin_value(stage::row_array);
    case stage::row_object:
      return begin_value(stage::row_object);
    case stage::value:
      ++counts_.back();
      if (counts_.size() >= inputs_[column_].shape.size())
        return broken(fmt::format("{}the value is nested too deeply: the input is {}", place(), shape()));
      counts_.push_back(0);
      return true;
    }
    return broken(fmt::format("{}an array stands where {} belongs", place(), expectation()));
  }

  bool end_array() override {
    if (stage_ == stage::rows) {
      stage_ = stage::document;
      return true;
    }
    if (stage_ == stage::row_array) {
      if (column_ != inputs_.size())
        return broken(fmt::format("row {}: {} values for {} inputs: the model takes {}", result_.rows, column_,
                                  inputs_.size(), names()));
      return end_row();
    }
    const auto& column = inputs_[column_];
    const auto count = counts_.back();
    const auto depth = counts_.size();
    const auto wanted = depth == 1 && (is_flat_ || column.shape.empty()) ? column.elements() : column.shape[depth - 1];
    if (count != wanted)
      return broken(fmt::format("{}an array of {}, expected {}: the input is {}", place(), count, wanted, shape()));
    counts_.pop_back();
    return counts_.empty() ? end_value() : true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& x) override {
    return broken(fmt::format("the body is not valid JSON at byte {}: {}", position, shortened(x.what())));
  }

 private:
  enum class stage : std::uint8_t { start, document, rows, row_object, row_array, value };

  template <class Number>
  bool number(Number value) {
    return scalar([&](const data::column_spec& column, std::vector<std::byte>& target) {
      if (column.categories != nullptr &&
          !(static_cast<double>(value) >= 0 &&
            static_cast<double>(value) < static_cast<double>(column.categories->size())))
        return refuse(fmt::format("{}", value), "a category is a text, or its number");
      return append_number(target, column.type, value) || refuse(fmt::format("{}", value));
    });
  }

  template <class Append>
  bool scalar(Append append) {
    switch (stage_) {
    case stage::start:
    case stage::document:
      return broken(R"(the body is not {"inputs": [row, ...]})");
    case stage::rows:
      if (inputs_.size() > 1 || inputs_.front().elements() != 1)
        return broken(fmt::format("row {}: a single value, but the model takes {}", result_.rows, names()));
      column_ = 0;
      return begin_row() && append(inputs_[0], result_.columns[0]) && end_row();
    case stage::row_array:
      if (column_ == inputs_.size())
        return too_many_values();
      [[fallthrough]];
    case stage::row_object:
      if (inputs_[column_].elements() != 1)
        return broken(fmt::format("{}a single value, but the input is {}", place(), shape()));
      return append(inputs_[column_], result_.columns[column_]) && value_given();
    case stage::value:
      break;
    }
    const auto& column = inputs_[column_];
    const auto depth = counts_.size();
    if (depth != 1 && depth != column.shape.size())
      return broken(fmt::format("{}a number among arrays: the input is {}", place(), shape()));
    is_flat_ = is_flat_ || depth == 1;
    ++counts_.back();
    if (++elements_ > column.elements())
      return broken(fmt::format("{}more than {} numbers: the input is {}", place(), column.elements(), shape()));
    return append(column, result_.columns[column_]);
  }

  bool begin_row() {
    if (result_.rows == max_rows_) {
      error_ = error{errc::unsatisfiable,
                     fmt::format("more than {} rows, which is the most of one request: send several", max_rows_)};
      return false;
    }
    given_.assign(inputs_.size(), false);
    return true;
  }

  bool end_row() {
    ++result_.rows;
    stage_ = stage::rows;
    return true;
  }

  bool begin_value(stage after) {
    after_value_ = after;
    stage_ = stage::value;
    counts_.assign(1, 0);
    elements_ = 0;
    is_flat_ = false;
    return true;
  }

  bool end_value() {
    if (elements_ != inputs_[column_].elements())
      return broken(fmt::format("{}{} numbers, expected {}: the input is {}", place(), elements_,
                                inputs_[column_].elements(), shape()));
    stage_ = after_value_;
    return after_value_ == stage::rows ? end_row() : value_given();
  }

  bool value_given() {
    given_[column_] = true;
    if (stage_ == stage::row_array)
      ++column_;
    return true;
  }

  bool too_many_values() {
    return broken(
        fmt::format("row {}: more than {} values: the model takes {}", result_.rows, inputs_.size(), names()));
  }

  bool refuse(const std::string& value, const std::string& why = {}) {
    return broken(
        fmt::format("{}{} cannot be a value: {}", place(), value, why.empty() ? "the input is " + shape() : why));
  }

  bool broken(std::string text) {
    error_ = error{errc::invalid_argument, std::move(text)};
    return false;
  }

  [[nodiscard]] std::string expectation() const {
    return stage_ == stage::start      ? R"({"inputs": [row, ...]})"
           : stage_ == stage::document ? "an array of rows"
                                       : "a value";
  }

  [[nodiscard]] std::string place() const {
    if (stage_ == stage::start || stage_ == stage::document)
      return {};
    if (stage_ == stage::rows && inputs_.size() > 1)
      return fmt::format("row {}: ", result_.rows);
    return fmt::format("row {}, input '{}': ", result_.rows, inputs_[std::min(column_, inputs_.size() - 1)].name);
  }

  [[nodiscard]] std::string shape() const { return data::describe(inputs_[column_]); }

  /// The first inputs: a model can have thousands.
  [[nodiscard]] std::string names() const {
    std::string result;
    for (const auto& each : inputs_.first(std::min<std::size_t>(inputs_.size(), 8)))
      result += fmt::format("{}'{}' ({})", result.empty() ? "" : ", ", each.name, data::describe(each));
    return inputs_.size() > 8 ? fmt::format("{} and {} more", result, inputs_.size() - 8) : result;
  }

  [[nodiscard]] static std::string shortened(std::string_view text) {
    constexpr std::size_t most = 160;
    return text.size() > most ? std::string{text.substr(0, most)} + "..." : std::string{text};
  }

  const input_table& table_;
  std::span<const data::column_spec> inputs_;
  std::uint64_t max_rows_;
  row_values result_;
  std::optional<error> error_;
  stage stage_ = stage::start;
  bool has_inputs_ = false;
  /// Of the row that is being read.
  std::vector<bool> given_;
  std::size_t column_ = 0;
  /// Of the value that is being read: what comes after it, the children of each open array, and all its numbers.
  stage after_value_ = stage::rows;
  std::vector<std::uint64_t> counts_;
  std::uint64_t elements_ = 0;
  /// Whether the value is one array of numbers, whatever the input's shape is.
  bool is_flat_ = false;
};

} // namespace

expected<row_values> parse_json_rows(std::string_view body, const input_table& inputs, std::uint64_t max_rows) {
  auto reader = row_reader{inputs, max_rows, most_json_rows(body.size(), inputs, max_rows)};
  (void)nlohmann::json::sax_parse(body, &reader);
  return std::move(reader).finish();
}

} // namespace troupe::serving
