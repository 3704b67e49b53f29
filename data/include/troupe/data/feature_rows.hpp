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

/// The texts of categorical columns by the columns' names: code i is the i-th.
using category_texts = std::map<std::string, std::vector<std::string>>;

/// The texts of those of these columns that are categorical; a column that is not there is left out.
[[nodiscard]] category_texts categories_of(std::span<const column_spec> all, std::span<const std::string> columns);

/// The codes that a model knows: those of the data that it was trained on. Other data has codes of its own for the same
/// texts.
class known_categories {
 public:
  using code_map = std::unordered_map<std::string, std::int64_t>;

  known_categories() = default;
  explicit known_categories(const category_texts& texts);

  /// The codes of a column; null for one whose categories are not known.
  [[nodiscard]] const code_map* find(const std::string& column) const;

 private:
  std::map<std::string, code_map> columns_;
};

/// The numbers of these columns, row after row: for libraries that take a matrix of features. A column of vectors gives
/// as many features. Where the categories of a categorical column are known, its codes are those of `known` for the
/// same texts, and a text that is not among them is a missing value; otherwise they are the samples' own. The code -1
/// of a categorical column, a missing value, becomes NaN. Fails with `errc::not_found` for a column that is not there,
/// and with `errc::mismatch` for one of 16-bit floats or booleans.
[[nodiscard]] expected<std::vector<float>> feature_rows(const batch& samples, std::span<const std::string> columns,
                                                        const known_categories& known = {});

} // namespace troupe::data
