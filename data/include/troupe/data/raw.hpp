#pragma once

#include <troupe/data/column.hpp>
#include <troupe/dtype.hpp>
#include <troupe/error.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace troupe::data {

/// Maps a file of numbers without a header, little-endian, sample after sample: token files, NumPy's `tofile` and
/// `memmap`. `shape` is that of one sample. The file is not read into memory, may be larger than it, and must not
/// shrink during the run. Fails with `errc::invalid_argument` for bool and for a sample without bytes, with
/// `errc::not_found` or `errc::io_error`, and with `errc::damaged`, naming the file, if it is not a whole number of
/// samples, or empty.
[[nodiscard]] expected<column> read_raw(const std::filesystem::path& path, std::string column_name, dtype type,
                                        std::vector<std::uint64_t> shape = {});

} // namespace troupe::data
