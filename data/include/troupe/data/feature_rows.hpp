#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

namespace troupe::data {

/// The texts of categorical columns by column name: code i means the i-th text.
using category_texts = std::map<std::string, std::vector<std::string>>;

/// The texts of the categorical columns among `columns`; other and missing columns are skipped.
[[nodiscard]] category_texts categories_of(std::span<const column_spec> all, std::span<const std::string> columns);

/// The codes that a model knows, which are those of its training data. Other data may have other codes for the same
/// texts.
class known_categories {
 public:
  using code_map = std::unordered_map<std::string, std::int64_t>;

  known_categories() = default;
  explicit known_categories(const category_texts& texts);

  /// The codes of a column; null if its categories are not known.
  [[nodiscard]] const code_map* find(const std::string& column) const;

 private:
  std::map<std::string, code_map> columns_;
};

/// The numbers of these columns, row after row, for libraries that take a feature matrix. A column of vectors yields
/// one feature per element. If the categories of a categorical column are in `known`, its codes are translated by their
/// texts, and an unknown text becomes a missing value; otherwise the codes are used unchanged. Missing values (code -1)
/// become NaN. Fails with `errc::not_found` for a missing column, and with `errc::mismatch` for 16-bit floats and
/// booleans.
[[nodiscard]] expected<std::vector<float>> feature_rows(const batch& samples, std::span<const std::string> columns,
                                                        const known_categories& known = {});

} // namespace troupe::data
