#include <troupe/data/feature_rows.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace troupe::data {

namespace {

constexpr auto missing_value = std::numeric_limits<float>::quiet_NaN();

/// The numbers of a column's codes, as a model knows them.
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

/// Adds a column's numbers to rows of `width`, from place `first` on.
template <class T>
void scatter(std::span<const std::byte> bytes, std::uint64_t elements, const code_reader& number,
             std::vector<float>& rows, std::uint64_t width, std::uint64_t first) {
  auto values = std::span{reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  for (std::size_t i = 0; i < values.size(); ++i)
    rows[i / elements * width + first + i % elements] = number(values[i]);
}

expected<void> scatter_column(const batch& samples, std::size_t index, const known_categories& known,
                              std::vector<float>& rows, std::uint64_t width, std::uint64_t first) {
  const auto& spec = samples.columns()[index];
  auto number = code_reader{spec, known};
  auto add = [&]<class T>(T) {
    scatter<T>(samples.bytes(index), spec.elements(), number, rows, width, first);
    return expected<void>{};
  };
  switch (spec.type) {
  case dtype::f32:
    return add(float{});
  case dtype::f64:
    return add(double{});
  case dtype::i8:
    return add(std::int8_t{});
  case dtype::i16:
    return add(std::int16_t{});
  case dtype::i32:
    return add(std::int32_t{});
  case dtype::i64:
    return add(std::int64_t{});
  case dtype::u8:
    return add(std::uint8_t{});
  case dtype::u16:
    return add(std::uint16_t{});
  case dtype::u32:
    return add(std::uint32_t{});
  case dtype::u64:
    return add(std::uint64_t{});
  case dtype::f16:
  case dtype::bf16:
  case dtype::boolean:
    break;
  }
  return fail(errc::mismatch, "column '" + spec.name + "' is " + describe(spec) +
                                  ", which is no feature: make it f32, f64 or an integer");
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
      auto there = std::string{};
      for (const auto& each : samples.columns())
        there += (there.empty() ? "" : ", ") + each.name;
      return fail(errc::not_found, "no column '" + name + "' among " + there);
    }
    indices.push_back(*found);
    width += samples.columns()[*found].elements();
  }
  std::vector<float> rows(samples.size() * width);
  std::uint64_t first = 0;
  for (auto index : indices) {
    if (auto added = scatter_column(samples, index, known, rows, width, first); !added)
      return fail(std::move(added.error()));
    first += samples.columns()[index].elements();
  }
  return rows;
}

} // namespace troupe::data
