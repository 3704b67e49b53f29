#pragma once

#include <troupe/data/column.hpp>
#include <troupe/error.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

namespace troupe::data {

/// The format of the MNIST family: two zero bytes, type, number of dimensions (1 to 4 are read), the dimensions as
/// big-endian 32-bit numbers, then the values, big-endian. The first dimension counts the samples. A file whose first
/// bytes say gzip is unpacked.
///
/// Bytes stay where they are, in the mapped file; wider types and gzip are converted into memory once. Fails with
/// `errc::not_found` or `errc::io_error`, and with `errc::damaged`, naming the file and what was expected, for a file
/// that is no IDX, or is shorter or longer than its header says.
[[nodiscard]] expected<column> read_idx(const std::filesystem::path& path, std::string column_name);

/// The same from memory. `file` stands in messages; `owner` keeps `content` alive.
[[nodiscard]] expected<column> parse_idx(std::span<const std::byte> content, std::shared_ptr<const void> owner,
                                         const std::string& file, std::string column_name);

} // namespace troupe::data
