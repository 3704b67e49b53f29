#pragma once

#include <troupe/data/batch.hpp>
#include <troupe/error.hpp>

#include <span>
#include <string>
#include <vector>

namespace troupe::data {

/// The numbers of these columns, row after row: for libraries that take a matrix of features. A column of vectors gives
/// as many features. The code -1 of a categorical column, a missing value, becomes NaN. Fails with `errc::not_found`
/// for a column that is not there, and with `errc::mismatch` for one of 16-bit floats or booleans.
[[nodiscard]] expected<std::vector<float>> feature_rows(const batch& samples, std::span<const std::string> columns);

} // namespace troupe::data
