#pragma once

#include <troupe/data/column.hpp>
#include <troupe/error.hpp>

#include <filesystem>
#include <string>

namespace troupe::data {

/// Reads an array saved by NumPy, whose first dimension is the samples, into memory in C order. Fails as
/// `serialization::read_npy` does, and with `errc::invalid_argument`, naming the file, for a scalar.
[[nodiscard]] expected<column> read_npy(const std::filesystem::path& path, std::string column_name);

} // namespace troupe::data
