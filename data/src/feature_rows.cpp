#include <troupe/data/feature_rows.hpp>

#include "column_preprocessor.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fmt/format.h>
#include <limits>

namespace troupe::data {

namespace {

constexpr auto missing_value = std::numeric_limits<float>::quiet_NaN();

/// Translates a column's codes to those that the model knows.
class code_reader {
 public:
  code_reader(const column_spec& column, const known_categories& known)
      : texts_(column.categories.get()), codes_(texts_ == nullptr ? nullptr : known.find(column.name)) {}

  template <class T>
  [[nodiscard]] float operator()(T value) const {
    if (texts_ == nullptr)
      return static_cast<float>(value);
    auto code = static_cast<double>(value);
    if (code < 0)
      return missing_value;
    if (codes_ == nullptr)
      return static_cast<float>(value);
    auto index = static_cast<std::size_t>(code);
    if (index >= texts_->size())
      return missing_value;
    auto found = codes_->find((*texts_)[index]);
    return found == codes_->end() ? missing_value : static_cast<float>(found->second);
  }

 private:
  const std::vector<std::string>* texts_;
  const known_categories::code_map* codes_;
};

/// Writes a column's numbers into rows of `width`, from index `first` on.
expected<void> scatter_column(const batch& samples, std::size_t index, const known_categories& known,
                              std::vector<float>& rows, std::uint64_t width, std::uint64_t first) {
  const auto& spec = samples.columns()[index];
  if (!is_readable(spec.type))
    return fail(errc::mismatch,
                fmt::format("column '{}' is {}, which cannot be a feature: make it f32, f64 or an integer", spec.name,
                            describe(spec)));
  auto number = code_reader{spec, known};
  auto elements = spec.elements();
  with_numbers(spec.type, samples.bytes(index), [&](auto values) {
    for (std::size_t i = 0; i < values.size(); ++i)
      rows[i / elements * width + first + i % elements] = number(values[i]);
  });
  return {};
}

} // namespace

category_texts categories_of(std::span<const column_spec> all, std::span<const std::string> columns) {
  category_texts result;
  for (const auto& column : all)
    if (column.categories != nullptr && std::ranges::find(columns, column.name) != columns.end())
      result.emplace(column.name, *column.categories);
  return result;
}

known_categories::known_categories(const category_texts& texts) {
  for (const auto& [column, all] : texts) {
    auto& codes = columns_[column];
    codes.reserve(all.size());
    for (std::size_t i = 0; i < all.size(); ++i)
      codes.emplace(all[i], static_cast<std::int64_t>(i));
  }
}

const known_categories::code_map* known_categories::find(const std::string& column) const {
  auto found = columns_.find(column);
  return found == columns_.end() ? nullptr : &found->second;
}

expected<std::vector<float>> feature_rows(const batch& samples, std::span<const std::string> columns,
                                          const known_categories& known) {
  std::vector<std::size_t> indices;
  std::uint64_t width = 0;
  for (const auto& name : columns) {
    auto found = samples.find(name);
    if (!found) {
      auto existing = std::vector<std::string_view>{};
      for (const auto& each : samples.columns())
        existing.push_back(each.name);
      return fail(errc::not_found, fmt::format("no column '{}' among {}", name, fmt::join(existing, ", ")));
    }
    indices.push_back(*found);
    width += samples.columns()[*found].elements();
  }
  std::vector<float> rows(samples.size() * width);
  std::uint64_t first = 0;
  for (auto index : indices) {
    TROUPE_TRY(scatter_column(samples, index, known, rows, width, first));
    first += samples.columns()[index].elements();
  }
  return rows;
}

} // namespace troupe::data
