#pragma once

#include <troupe/data/column.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace troupe::serving {

/// The inputs of a model, found by name: a model can have thousands, and a request names them in each row. Immutable.
class input_table {
 public:
  explicit input_table(std::vector<data::column_spec> columns);
  input_table(const input_table&) = delete;
  input_table& operator=(const input_table&) = delete;

  [[nodiscard]] std::span<const data::column_spec> columns() const noexcept { return columns_; }

  /// The input's place among the columns.
  [[nodiscard]] std::optional<std::size_t> find(std::string_view name) const;

  /// The code of a category of an input; -1 for an unknown one.
  [[nodiscard]] std::int64_t category(std::size_t column, std::string_view text) const;

  /// Of all inputs of a row, as they are stored.
  [[nodiscard]] std::uint64_t row_bytes() const noexcept { return row_bytes_; }
  [[nodiscard]] std::uint64_t row_elements() const noexcept { return row_elements_; }

 private:
  std::vector<data::column_spec> columns_;
  std::unordered_map<std::string_view, std::size_t> names_;
  std::vector<std::unordered_map<std::string_view, std::int64_t>> categories_;
  std::uint64_t row_bytes_ = 0;
  std::uint64_t row_elements_ = 0;
};

} // namespace troupe::serving
