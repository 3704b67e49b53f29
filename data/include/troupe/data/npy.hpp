#pragma once

#include <troupe/data/column.hpp>
#include <troupe/error.hpp>

#include <filesystem>
#include <string>

namespace troupe::data {

/// Opens an array saved by NumPy, whose first dimension is the samples. In C order and little-endian, as NumPy writes
/// by default, it stays in the mapped file, which may be larger than memory and must not shrink during the run; other
/// arrays, and those of bool, are converted into memory. Fails as `serialization::read_npy` does, and with
/// `errc::invalid_argument`, naming the file, for a scalar.
[[nodiscard]] expected<column> read_npy(const std::filesystem::path& path, std::string column_name);

} // namespace troupe::data
